"""The manifest of weights: any tensors and any size of bucket come back, and whatever was done to them is found."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from actors.weights.manifest import ITEM_BYTES, Layout, Manifest, digest, lay_out, read_header, read_layout, seal
from coa.errors import DamagedWeights, IncompleteWeights, SyncError, WrongVersion

NAMES = st.text(min_size=1).filter(lambda name: name != "__metadata__")
"""The format keeps that one for itself."""
TENSORS = st.lists(
    st.tuples(NAMES, st.sampled_from(sorted(ITEM_BYTES)), st.lists(st.integers(0, 5), max_size=3)),
    max_size=8,
    unique_by=lambda tensor: tensor[0],
)
BUCKETS = st.integers(1, 200)


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def sealed(layout: Layout, data: np.ndarray, version: int = 3) -> Manifest:
    return seal(version, layout, lambda start, stop: data[start:stop])


@given(TENSORS, BUCKETS)
def test_any_tensors_lie_in_the_flattened_model_without_gaps_each_where_its_type_may_begin(
    tensors: Any, bucket: Any
) -> None:
    layout = lay_out(tensors, bucket)
    assert {(t.name, t.dtype, t.shape) for t in layout.tensors} == {(n, d, tuple(s)) for n, d, s in tensors}
    at = 0
    for tensor in layout.tensors:
        assert tensor.start == at
        assert tensor.start % ITEM_BYTES[tensor.dtype] == 0
        at = tensor.stop
        assert at - tensor.start == ITEM_BYTES[tensor.dtype] * int(np.prod(tensor.shape, dtype=np.int64))
    assert layout.nbytes == at


@given(TENSORS, BUCKETS)
def test_buckets_cover_every_byte_once_and_put_together_are_the_model_again(tensors: Any, bucket: Any) -> None:
    layout = lay_out(tensors, bucket)
    data = random_bytes(layout.nbytes)
    parts = [data[slice(*layout.bucket(index))] for index in range(layout.buckets)]
    assert all(len(part) == bucket for part in parts[:-1])
    again = np.concatenate([np.empty(0, np.uint8), *parts])
    assert np.array_equal(again, data)
    sealed(layout, data).check(again)


@given(st.integers(0, 299))
def test_the_fingerprint_is_the_bytes_whatever_the_version_is_called(position: int) -> None:
    layout = lay_out([("a", "U8", (300,))], 64)
    data = random_bytes(300)
    changed = data.copy()
    changed[position] ^= 1
    assert sealed(layout, data, version=4).fingerprint == sealed(layout, data).fingerprint
    assert sealed(layout, changed).fingerprint != sealed(layout, data).fingerprint


@given(TENSORS, BUCKETS)
def test_a_header_gives_its_layout_back(tensors: Any, bucket: Any) -> None:
    layout = lay_out(tensors, bucket)
    header = layout.header()
    back, base = read_header(header, "there", bucket)
    assert base == len(header)
    assert back.nbytes == layout.nbytes
    if all(t.stop > t.start for t in layout.tensors):  # empty tensors lie anywhere
        assert back == layout


@given(TENSORS, BUCKETS, st.data())
def test_a_flipped_byte_is_found_wherever_it_is(tensors: Any, bucket: Any, choice: Any) -> None:
    layout = lay_out(tensors, bucket)
    data = random_bytes(layout.nbytes)
    manifest = sealed(layout, data)
    if not layout.nbytes:
        return
    at = choice.draw(st.integers(0, layout.nbytes - 1))
    data[at] ^= choice.draw(st.integers(1, 255))
    with pytest.raises(DamagedWeights, match=f"version 3: bucket {at // bucket} of"):
        manifest.check(data)


@given(TENSORS, BUCKETS, st.data())
def test_a_missing_end_is_found(tensors: Any, bucket: Any, choice: Any) -> None:
    layout = lay_out(tensors, bucket)
    data = random_bytes(layout.nbytes)
    if layout.nbytes:
        with pytest.raises(IncompleteWeights):
            sealed(layout, data).check(data[: choice.draw(st.integers(0, layout.nbytes - 1))])


@given(TENSORS, BUCKETS, st.data())
def test_a_tensor_left_out_or_added_is_named(tensors: Any, bucket: Any, choice: Any) -> None:
    layout = lay_out(tensors, bucket)
    manifest = sealed(layout, random_bytes(layout.nbytes))
    manifest.check_names(layout.names)
    if tensors:
        left = choice.draw(st.sampled_from(sorted(layout.names)))
        with pytest.raises(IncompleteWeights) as raised:
            manifest.check_names(layout.names - {left})
        assert str(raised.value) == f"version 3: not loaded: {left}"
    with pytest.raises(IncompleteWeights, match="without being published"):
        manifest.check_names({*layout.names, max(layout.names, default="") + "x"})


@given(TENSORS, BUCKETS, st.integers(1, 7))
def test_shares_cover_every_byte_once_and_cut_no_element(tensors: Any, bucket: Any, among: Any) -> None:
    layout = lay_out(tensors, bucket)
    shares = layout.shares(among)
    assert len(shares) == among
    assert (shares[0][0], shares[-1][1]) == (0, layout.nbytes)
    for (_, stop), (start, _) in pairwise(shares):
        assert stop == start
        for tensor in layout.tensors:
            if tensor.start < stop < tensor.stop:
                assert (stop - tensor.start) % ITEM_BYTES[tensor.dtype] == 0


def test_a_missing_bucket_a_wrong_digest_count_and_another_version_are_found() -> None:
    layout = lay_out([("a", "F32", (10,)), ("b", "BF16", (3,))], 16)
    data = random_bytes(46)
    manifest = sealed(layout, data)
    with pytest.raises(IncompleteWeights, match="version 3: bucket 1 of 3 is missing"):
        manifest.check_bucket(1, None)
    with pytest.raises(IncompleteWeights, match="there is no bucket 3 of 3"):
        manifest.check_bucket(3, data[:1])
    with pytest.raises(IncompleteWeights, match="2 of 3 digests"):
        Manifest(3, layout, manifest.digests[:2]).check(data)
    with pytest.raises(DamagedWeights, match="47 bytes, not 46"):
        manifest.check(np.append(data, np.uint8(0)))
    with pytest.raises(WrongVersion, match="these weights are version 3, not 4"):
        manifest.check_version(4)
    manifest.check_version(3)


def test_the_digest_is_xxh3_128() -> None:
    assert digest(b"").hex() == "99aa06d3014798d86001c324468d497f"


def test_wider_elements_come_first_and_names_are_unique() -> None:
    layout = lay_out([("a", "BF16", (3,)), ("b", "F32", (2, 2)), ("c", "BF16", ())], 8)
    assert [(t.name, t.start, t.stop) for t in layout.tensors] == [("b", 0, 16), ("a", 16, 22), ("c", 22, 24)]
    with pytest.raises(ValueError, match="same name"):
        lay_out([("a", "F32", ()), ("a", "F32", ())], 8)
    with pytest.raises(ValueError, match="no such type of weights: F3"):
        lay_out([("a", "F3", ())], 8)
    with pytest.raises(ValueError, match="a bucket of 0 bytes"):
        lay_out([], 0)


def test_a_header_and_the_bytes_are_a_safetensors_file(tmp_path: Path) -> None:
    layout = lay_out([("a", "F32", (2, 3)), ("b", "I8", (5,))], 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(layout.header() + random_bytes(layout.nbytes).tobytes())
    with safe_open(str(path), "np") as file:
        assert (file.metadata(), sorted(file.keys())) == ({"format": "pt"}, ["a", "b"])
        assert file.get_tensor("a").tobytes() == random_bytes(layout.nbytes)[:24].tobytes()
    assert read_layout(path, 8) == (layout, len(layout.header()))
    (tmp_path / "other").write_bytes(b"other bytes")
    with pytest.raises(SyncError, match="not a safetensors file"):
        read_layout(tmp_path / "other", 8)
    with pytest.raises(SyncError, match="No such file"):
        read_layout(tmp_path / "none", 8)
