"""OCI image layouts: what makes one, and what is refused."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.oci import MANIFEST, MODULE, Image, blob_path, describe, entry, pack
from tensorwasm.errors import DigestMismatch, InvalidImage, ModuleTooLarge
from tensorwasm.service.functions.oci import BLOCK_BYTES, MAX_ENTRIES, is_image, read_image, read_tar

MOST = 1 << 20


@given(st.binary(min_size=0, max_size=5000))
def test_the_module_of_an_image_is_returned_unchanged(module):
    assert read_image(Image(module).tar(), MOST) == module


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("layer", ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_every_common_form_is_read(form, layer, prefix):
    files = Image(layer_type=layer).files()
    assert read_image(pack(files, form, prefix), MOST) == MODULE


def test_folders_times_and_other_blobs_are_ignored():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry("./", type=tarfile.DIRTYPE))
        archive.addfile(entry("blobs/sha256", type=tarfile.DIRTYPE))
        for path, data in (Image().files() | {"blobs/sha256/" + "0" * 64: b"not read"}).items():
            archive.addfile(entry(path, size=len(data), mtime=1.5), io.BytesIO(data))
    assert is_image(out.getvalue())
    assert read_image(out.getvalue(), MOST) == MODULE


def test_a_module_is_no_image():
    assert not is_image(MODULE)
    assert not is_image(MODULE + bytes(4096))


BAD_IMAGES = {
    "layout": Image(layout={"imageLayoutVersion": "2.0.0"}),
    "nested index": Image(
        index={"manifests": [describe(b"{}", "application/vnd.oci.image.index.v1+json")]},
    ),
    "no manifest": Image(index={"manifests": []}),
    "two manifests": Image(index={"manifests": [describe(b"{}", MANIFEST)] * 2}),
    "old index": Image(index={"schemaVersion": 1}),
    "no layer": Image(manifest={"layers": []}),
    "two layers": Image(manifest={"layers": [describe(MODULE, "application/wasm")] * 2}),
    "layer of another type": Image(layer_type="application/vnd.oci.image.layer.v1.tar+gzip"),
    "config of another type": Image(config_type="application/vnd.oci.image.config.v1+json"),
    "manifest of another type": Image(manifest={"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}),
    "blob that is not there": Image(manifest={"layers": [describe(b"other", "application/wasm")]}),
    "another digest": Image(
        manifest={"layers": [{"mediaType": "application/wasm", "digest": "sha512:" + "0" * 128, "size": 8}]}
    ),
    "a path for a digest": Image(
        manifest={"layers": [{"mediaType": "application/wasm", "digest": "sha256:../../oci-layout", "size": 8}]}
    ),
    "a negative size": Image(manifest={"layers": [describe(MODULE, "application/wasm") | {"size": -1}]}),
    "not the right fields": Image(manifest={"layers": "none"}),
}


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES.keys())
def test_images_that_are_not_one_module_are_refused(image):
    with pytest.raises(InvalidImage):
        read_image(image.tar(), MOST)


@pytest.mark.parametrize("which", ["module", "config", "manifest"])
def test_a_blob_that_does_not_match_its_digest_is_refused(which):
    image = Image(module=MODULE + b"\0\2ab")
    data = {"module": image.module, "config": image.config, "manifest": image.manifest_bytes()}[which]
    files = image.files() | {blob_path(data): data[:-1] + bytes([data[-1] ^ 1])}
    with pytest.raises(DigestMismatch):
        read_image(pack(files), MOST)


def test_a_wrong_size_of_a_blob_is_refused():
    wrong = describe(MODULE, "application/wasm") | {"size": len(MODULE) + 1}
    with pytest.raises(DigestMismatch):
        read_image(Image(manifest={"layers": [wrong]}).tar(), MOST)


def test_a_module_over_the_limit_is_refused_by_its_declared_size():
    with pytest.raises(ModuleTooLarge):
        read_image(Image(bytes(2000)).tar(), 1999)
    lying = describe(bytes(2000), "application/wasm") | {"size": 10}
    with pytest.raises(InvalidImage):
        read_image(Image(bytes(2000), manifest={"layers": [lying]}).tar(), 1999)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 50_000])
def test_json_that_is_nested_deeply_is_refused(deep):
    files = Image().files() | {"index.json": deep.encode()}
    with pytest.raises(InvalidImage):
        read_image(pack(files), MOST)


BAD_ENTRIES = {
    "symbolic link": entry("oci-layout", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": entry("oci-layout", type=tarfile.LNKTYPE, linkname="index.json"),
    "pipe": entry("oci-layout", type=tarfile.FIFOTYPE),
    "device": entry("oci-layout", type=tarfile.CHRTYPE),
    "absolute": entry("/oci-layout"),
    "upward": entry("blobs/../oci-layout"),
    "backslash": entry("blobs\\x"),
    "doubled": entry("blobs//x"),
    "control character": entry("blobs/\x1b"),
    "long name": entry("a" * 200 + "/b"),
    "pax path": entry("é" * 10),
}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
def test_entries_that_are_no_plain_files_are_refused(bad, form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        archive.addfile(bad)
    with pytest.raises(InvalidImage):
        read_tar(out.getvalue())


def test_two_files_of_one_name_are_refused_however_they_are_written():
    twice = pack({"a": b"1"})[: 2 * BLOCK_BYTES] + pack({"./a": b"2"})
    with pytest.raises(InvalidImage, match="two files of one name"):
        read_tar(twice)


def test_an_archive_with_a_great_many_entries_is_refused():
    with pytest.raises(InvalidImage, match="entries"):
        read_tar(pack({str(number): b"" for number in range(MAX_ENTRIES + 1)}, tarfile.USTAR_FORMAT))


def test_an_archive_that_ends_early_is_refused_wherever_it_ends():
    whole = Image().tar()
    end = len(whole.rstrip(b"\0"))
    for length in range(0, end, 64):
        with pytest.raises(InvalidImage):
            read_image(whole[:length], MOST)


@given(st.data())
def test_a_damaged_image_gives_the_module_or_an_expected_error(data):
    module = MODULE + bytes(range(256)) * 4
    whole = bytearray(Image(module).tar())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert read_image(bytes(whole), MOST) == module
    except (InvalidImage, DigestMismatch, ModuleTooLarge):
        return


@given(st.binary(max_size=2048))
def test_random_bytes_give_an_expected_error(data):
    with pytest.raises(InvalidImage):
        read_image(data, MOST)
