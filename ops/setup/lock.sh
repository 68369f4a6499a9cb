#!/bin/sh
# Remakes the lock files from pyproject.toml: requirements-cpu.lock, -gpu.lock, -dev.lock (the tools of
# `make check` and `make test`, on top of either profile) and -nixl.lock (one wheel on top of the gpu
# profile, which has all that it needs). Names no index and no path.
# Usage: ops/setup/lock.sh    (needs Python 3.11 and the network)
set -eu
cd "$(dirname "$0")/../.."
work=.baton/lock
# torch's CPU build (2.13.0+cpu, Linux x86_64) is not on PyPI. The cpu lock holds its hash alone:
# with the hashes of PyPI's files beside it pip prefers those, and they need CUDA libraries.
torch_cpu=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

mkdir -p "$work"
[ -x "$work/venv/bin/pip-compile" ] || {
  "${PYTHON:-python3.11}" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q 'pip-tools==7.6.2'
}
compile() {
  "$work/venv/bin/pip-compile" -q --generate-hashes --allow-unsafe --strip-extras --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
    "$@" pyproject.toml
}

echo "gpu profile …"
PIP_FIND_LINKS='' PIP_CONFIG_FILE=/dev/null compile --extra gpu -o "$work/gpu"
echo "cpu profile …"
compile --extra cpu -o "$work/cpu"
echo "tools …"
compile --extra cpu --extra dev -c "$work/cpu" -o "$work/dev"

{
  echo "# cpu profile, made by ops/setup/lock.sh; torch is its CPU build (see ops/setup/install.sh)."
  awk -v hash="$torch_cpu" '/^[^ ]/ { on = 1 }
    /^torch==/ { print "torch==2.13.0 \\\n    --hash=" hash; on = 0 } on' "$work/cpu"
} >requirements-cpu.lock
{
  echo "# gpu profile (CUDA 13), made by ops/setup/lock.sh."
  cat "$work/gpu"
} >requirements-gpu.lock
{
  echo "# tools on top of the cpu or gpu profile, made by ops/setup/lock.sh."
  awk 'NR == FNR { if ($0 ~ /^[^ ]/) known[$1] = 1; next } /^[^ ]/ { on = !($1 in known) } on' \
    "$work/cpu" "$work/dev"
} >requirements-dev.lock
echo "nixl …"
nixl=$(sed -n 's/^nixl = \["\(.*\)"\]$/\1/p' pyproject.toml)
rm -rf "$work/nixl"
"$work/venv/bin/pip" download -q --no-deps -d "$work/nixl" "$nixl"
{
  echo "# the extra nixl on top of the gpu profile, made by ops/setup/lock.sh."
  echo "$nixl \\"
  "$work/venv/bin/pip" hash "$work"/nixl/*.whl | sed -n 's/^--hash/    --hash/p'
} >requirements-nixl.lock
wc -l requirements-*.lock
