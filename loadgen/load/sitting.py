"""One target's share of a run: asked who it is, loaded once or more often, then judged and written
down.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.load import conduct, environment, target
from loadgen.load.conduct import Conducted
from loadgen.load.setup import Plan
from loadgen.reports import leave, run_files
from loadgen.reports.server_side import ServerSide
from loadgen.reports.summary import Facts, summarise


@dataclass(slots=True)
class Sitting:
    """`begin`, `load` as often as wished, `finish`."""

    plan: Plan
    options: argparse.Namespace
    folder: Path
    model: str
    server: ServerSide
    began: dict[str, Any]
    done: Conducted

    @classmethod
    async def begin(cls, plan: Plan, options: argparse.Namespace, folder: Path) -> Sitting:
        """Raises TargetError."""
        headers = dict(plan.headers)
        model = options.model or await target.first_model(plan.base_url, headers)
        if not plan.choice.alphabet:
            alphabet = await target.ordinary_tokens(plan.base_url, model, headers)
            plan = replace(plan, choice=replace(plan.choice, alphabet=alphabet))
        # Baton keeps the traces of a named run and finds them by its name; others do not mind.
        plan = replace(plan, headers=(("x-baton-run", folder.name), *plan.headers))
        server = ServerSide(await target.admin_url(plan.base_url, options.admin_url))
        await server.begin()
        return cls(plan, options, folder, model, server, environment.describe(), Conducted())

    async def load(self, plan: Plan) -> None:
        """One load, by this plan. Raises UsageError."""
        await conduct.one_load(plan, self.options, self.model, self.folder, self.done)

    async def finish(self, steps: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """What run.json says, once everything is written. Raises RunFileError: the rows cannot be
        read back."""
        plan, done = self.plan, self.done
        told = await self.server.end()
        leave.rows(self.folder, done.files, done.trouble)
        rows = run_files.read_rows(self.folder)
        answered = rows.measured().where(rows.measured().ok)
        traces = answered.marks["trace_id"].astype(str).tolist()
        told |= {"ttft_split": await self.server.splits(traces)}
        facts = Facts(
            slos=plan.slos,
            gpus=plan.gpus,
            percentiles=plan.percentiles,
            steady=plan.steady,
            closed=plan.pace.closed,
            sweep=bool(steps),
            capped=done.capped,
            scheduled=done.scheduled,
            ideal_hit=done.ideal_hit,
            gaps=done.gaps,
            clients=done.clients,
        )
        document = {
            "schema": run_files.SCHEMA,
            "id": self.folder.name,
            "source": "live",
            "environment": self.began,
            **_said(plan, self.options, done),
            "target": {
                "base_url": plan.base_url,
                "path": plan.path,
                "model": self.model,
                "admin_url": self.server.admin_url,
            },
            **summarise(rows, facts),
            "steps": list(steps),
            "max_goodput": conduct.most_goodput(steps),
            "server_delta": told,
            "interrupted": done.interrupted,
            "trouble": done.trouble,
        }
        leave.everything(self.folder, document, rows)
        return document


def _said(plan: Plan, options: argparse.Namespace, done: Conducted) -> dict[str, Any]:
    """What was asked for."""
    command = {
        name: str(value)
        for name, value in sorted(vars(options).items())
        if name not in ("call", "ignored", "header") and value not in (None, "", [], False)
    }
    workload = done.chosen.part.workload if done.chosen else None
    return {
        "command": command,
        "seed": options.seed,
        "schedule_digest": environment.schedule_digest(workload, options.seed) if workload else "",
        "dataset": {
            "name": plan.choice.name,
            "requests": len(workload) if workload else 0,
            "notes": list(done.chosen.notes) if done.chosen else [],
        },
        "arrival": {
            "name": "trace" if done.chosen and done.chosen.paced else plan.arrival,
            "rate_rps": None if plan.rate_per_s == float("inf") else plan.rate_per_s,
            "closed": plan.pace.closed,
            "cap": plan.pace.cap,
            "processes": plan.processes,
        },
        "metadata": dict(entry.partition("=")[::2] for entry in options.metadata or ()),
    }
