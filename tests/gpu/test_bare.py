"""What runs on a rented GPU runs there with little installed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_checks_of_a_device_need_neither_ray_nor_vllm_nor_deepspeed() -> None:
    code = (
        "import sys, pytest\n"
        "sys.modules.update(ray=None, vllm=None, deepspeed=None)\n"
        "sys.exit(pytest.main(['-q', '-m', 'not gpu', '-p', 'no:cacheprovider', 'tests/gpu/test_one_device.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
