"""Whether nodes see the same files; several real nodes are in tests/jobs/test_submit_real.py."""

from pathlib import Path
from typing import Any

from cluster.remote.shared import Seen, _look, _marker, asked, complaint
from cluster.resources import Role


def node(name: str, *, alive: bool = True, cpus: float = 2, role: str = "") -> dict[str, Any]:
    labels = {"coa-role": role} if role else {}
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}, "Labels": labels}


def test_only_nodes_that_need_the_files_are_asked_and_none_where_there_is_one_node() -> None:
    head, dead = node("head", cpus=0), node("dead", alive=False)
    assert asked([node("only"), dead], by_role=False) == []
    several = [head, dead, node("l", role="learner"), node("t", role="tool"), node("e", role="engine")]
    assert [one["NodeID"] for one in asked(several, by_role=False)] == ["l", "t", "e"]
    assert [one["NodeID"] for one in asked(several, by_role=True)] == ["l", "e"]
    assert [one["NodeID"] for one in asked(several, by_role=True, roles=(Role.learner,))] == ["l"]


def test_the_first_node_that_lacks_something_is_named_in_one_line() -> None:
    fine = Seen("10.0.0.1", True, ())
    assert complaint("/r", [fine]) == ""
    line = complaint("/r", [fine, Seen("10.0.0.2", False, ())])
    assert line.startswith("run_dir /r is not shared: node 10.0.0.2 does not see")
    line = complaint("/s", [Seen("10.0.0.2", False, ())], "checkpoints.storage")
    assert line.startswith("checkpoints.storage /s is not shared: node 10.0.0.2 does not see")
    assert complaint("/r", [Seen("10.0.0.3", True, ("/m", "/n"))]) == (
        "/m is not there on node 10.0.0.3: put it where all nodes see it"
    )


def test_a_node_sees_the_folder_where_it_reads_what_the_driver_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with _marker(folder) as (marker, said):
        assert _look("n", marker, said, [str(tmp_path), "/not/there"]) == Seen("n", True, ("/not/there",))
        # A folder of the same name on another disk.
        assert not _look("n", marker, "other", []).folder
        assert not _look("n", str(tmp_path / "elsewhere"), said, []).folder
    assert _look("n", "", "", []).folder
    assert list(tmp_path.iterdir()) == [], "a check that fails leaves nothing behind"


def test_what_was_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    with _marker(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
