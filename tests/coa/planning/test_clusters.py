import pytest

from coa.errors import UserError
from coa.planning.clusters import DEVICES, Node, parse_cluster


def test_clusters_on_paper() -> None:
    h200, l4 = DEVICES["H200"], DEVICES["L4"]
    assert parse_cluster("4x8xH200") == (Node(8, h200),) * 4
    assert parse_cluster("8xh200") == (Node(8, h200),)
    assert parse_cluster("H200") == (Node(1, h200),)
    assert parse_cluster("2x8xH200+1x4xL4") == (Node(8, h200), Node(8, h200), Node(4, l4))
    assert parse_cluster("A100-80") == (Node(1, DEVICES["A100-80"]),)
    assert h200.memory == 139 * 2**30


@pytest.mark.parametrize("text", ["", "4x8", "4x8xH900", "0x8xH200", "4x8xH200+", "8 x H200", "-1x8xH200"])
def test_what_is_no_cluster_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="such as 4x8xH200"):
        parse_cluster(text)
