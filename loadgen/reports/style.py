"""The report's style sheet: light and dark, laptop and phone, nothing from outside."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c1f24;--soft:#596170;--paper:#fff;--rule:#d9dde3;
--bad:#b3261e;--warn:#7a5200;--good:#1b6e3c;--c0:#2f5fd0;--c1:#c2410c;--c2:#1b7f4b;--c3:#8a6d00;
--c4:#7b3fb5;--c5:#0f7c8a;--c6:#a3306d;--c7:#555f6e}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaee;--soft:#a4acb9;--paper:#14171c;--rule:#353b45;
--bad:#ff8a80;--warn:#ffcf70;--good:#7fdca4;--c0:#8fb0ff;--c1:#ff9e6b;--c2:#6fd6a0;--c3:#e3c65b;
--c4:#c79bf5;--c5:#6fd3e0;--c6:#f28fc3;--c7:#a9b2c0}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:1rem}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.8rem 0 .5rem}
a{color:var(--c0)}small,.none,span{color:var(--soft)}
.bad,.warn,.good{border-left:4px solid;padding:.4rem .8rem;margin:.5rem 0;background:transparent}
.bad{border-color:var(--bad)}.warn{border-color:var(--warn)}.good{border-color:var(--good)}
.cards{display:flex;flex-wrap:wrap;gap:1.4rem}.cards div{display:flex;flex-direction:column}
.cards b{font-size:1.5rem;font-variant-numeric:tabular-nums}.struck b{text-decoration:line-through}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:1rem}
figure{margin:0}svg{width:100%;max-width:720px;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
svg .title{font-size:13px;font-weight:600;fill:var(--ink)}.grid{stroke:var(--rule);fill:none}
.line{fill:none;stroke-width:1.6}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}
code{font-size:.85em;white-space:normal;overflow-wrap:anywhere}
""" + "".join(
    f"rect.s{n},circle.s{n}{{fill:var(--c{n})}}.line.s{n}{{stroke:var(--c{n})}}" for n in range(8)
)
