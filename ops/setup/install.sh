#!/bin/sh
# Fills a virtual environment from the lock files, hashes checked.
# Usage: ops/setup/install.sh VENV cpu|gpu [dev]
#
# The cpu profile takes torch's CPU build where pip can find one (a wheel folder in PIP_FIND_LINKS or
# in pip's configuration). PyPI alone has only the CUDA build for Linux, which pins CUDA 13: then the
# gpu profile is installed instead, which also runs on a machine without a GPU.
set -eu
cd "$(dirname "$0")/../.."
venv=$1 profile=$2 tools=${3:-}
python=${PYTHON:-python3.11}

command -v "$python" >/dev/null 2>&1 || {
  echo "Python 3.11 is missing: install it, or name it with PYTHON=/path/to/python3.11" >&2
  exit 1
}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "$python is not Python 3.11: name one with PYTHON=/path/to/python3.11" >&2
  exit 1
}
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || {
  echo "python -m venv failed: install the venv module of Python 3.11 (Debian: python3.11-venv)" >&2
  exit 1
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
locked() { pip install --no-deps --require-hashes "$@"; }

if [ "$profile" = cpu ]; then
  chosen=$(pip install --quiet --no-deps --dry-run --ignore-installed --report - torch==2.13.0 2>/dev/null) || {
    echo "pip cannot find torch 2.13.0: is the network there? (python -m pip download torch==2.13.0)" >&2
    exit 1
  }
  case $chosen in
    *'"triton=='*)
      echo "no CPU build of torch here: taking PyPI's CUDA build (about 3 GB)"
      profile=gpu
      ;;
  esac
fi
echo "installing the $profile profile${tools:+ and tools} into $venv"
if [ -n "$tools" ]; then
  locked -r "requirements-$profile.lock" -r requirements-dev.lock
  pip install --quiet --no-deps --no-build-isolation --editable .
else
  locked -r "requirements-$profile.lock"
fi
