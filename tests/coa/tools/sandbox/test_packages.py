"""The operator's packages: a virtual environment that programs may import from and not write to."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.tools.sandbox.command import base_python
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
from tests.support.sandboxes import QUICK, Box, box

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
PATHS = {"cold": False, "warm": True}
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "venv"
    subprocess.run([base_python(), "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / SITE / "seven.py").write_text("VALUE = 7\n")
    return folder


@pytest.fixture(params=PATHS.values(), ids=list(PATHS))
def either(request: pytest.FixtureRequest, environment: Path) -> Iterator[Box]:
    with box(replace(QUICK, warm=request.param, packages=str(environment))) as made:
        yield made


def test_programs_import_the_operators_packages(either: Box, environment: Path) -> None:
    assert either.output("import seven; print(seven.VALUE, seven.__file__)") == f"7 /packages/{SITE}/seven.py"
    assert "Read-only file system" in either.output("import seven; open(seven.__file__, 'a')")
    paths = "import os, sys; print([p for p in sys.path if os.path.isdir(p)][-1], os.path.exists(sys.argv[0]))"
    assert either.output(paths) == f"/packages/{SITE} True"
    assert either.output(f"import os; print(os.path.exists({str(environment)!r}))") == "False"


@pytest.mark.parametrize("warm", PATHS.values(), ids=list(PATHS))
def test_without_them_there_is_the_standard_library_alone(warm: bool) -> None:
    with box(replace(QUICK, warm=warm)) as made:
        assert made.output("import numpy") == "ModuleNotFoundError: No module named 'numpy'"


def test_a_folder_that_is_no_virtual_environment_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"tools.sandbox.packages={tmp_path} is not a virtual environment; make one"):
        Sandbox(SandboxConfig(packages=str(tmp_path)))


WORK = {
    "numpy": """
import numpy as np
a = np.arange(90000.0).reshape(300, 300) + 1000 * np.eye(300)
b = a @ np.linalg.inv(a)
np.save("x.npy", b)
print(round(float(np.trace(np.load("x.npy", mmap_mode="r")))), abs(np.fft.ifft(np.fft.fft(b[0])) - b[0]).max() < 1e-9)
""",
    "sympy": "import sympy as s; x = s.symbols('x'); print(s.integrate(x * s.sin(x), x), s.factorint(2**67 - 1))",
    "pandas": """
import io, pandas as pd
d = pd.read_csv(io.StringIO("a,b,t\\n1,x,2026-01-01\\n2,y,2026-01-02\\n3,x,2026-01-03"), parse_dates=["t"])
d.to_csv("x.csv")
print(d.groupby("b").a.sum().to_dict(), d.merge(d, on="a").shape, d.rolling(2, on="t").a.sum().iloc[-1])
""",
}
PRINTED = {
    "numpy": "300 True",
    "sympy": "-x*cos(x) + sin(x) {193707721: 1, 761838257287: 1}",
    "pandas": "{'x': 4, 'y': 2} (3, 5) 5.0",
}


@pytest.fixture(scope="module")
def scientific(environment: Path) -> Path:
    """An environment with copies of NumPy and pandas."""
    folder = environment.parent / "scientific"
    subprocess.run([base_python(), "-m", "venv", "--without-pip", str(folder)], check=True)
    for name in (
        "numpy",
        "numpy.libs",
        "sympy",
        "mpmath",
        "pandas",
        "pandas.libs",
        "dateutil",
        "pytz",
        "tzdata",
        "six.py",
    ):
        if (found := Path(pytest.__file__).parents[1] / name).exists():
            (shutil.copytree if found.is_dir() else shutil.copy)(found, folder / SITE / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("cgroup", [True, False], ids=["cgroup", "limits"])
@pytest.mark.parametrize("warm", PATHS.values(), ids=list(PATHS))
@pytest.mark.parametrize("name", WORK)
def test_scientific_packages_work(name: str, warm: bool, cgroup: bool, scientific: Path) -> None:
    config = SandboxConfig(cpu_s=20, wall_s=120.0, packages=str(scientific), warm=warm, cgroup=cgroup)
    with box(config) as made:
        assert made.output(WORK[name]) == PRINTED[name]
