"""At which address a node is reached."""

from actors.addresses import reached_at


def test_a_node_without_others_is_reached_at_loopback() -> None:
    here, other, dead = {"Alive": True}, {"Alive": True}, {"Alive": False}
    assert reached_at("10.0.0.7", [here]) == reached_at("10.0.0.7", [dead, here]) == "127.0.0.1"
    assert reached_at("10.0.0.7", [here, dead, other]) == "10.0.0.7"
