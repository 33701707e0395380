"""`penstock serve` and its data directory: refused without a change when it cannot be used, with advice that
works; left in order when a signal comes in the middle of work."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import RemotingError
from penstock.store.disk import RealDisk
from penstock.testing import broker
from penstock.transport.client import Connection
from penstock.wire.bodies import SubscriptionGroupConfig
from penstock.wire.codes import RequestCode, ResponseCode

FILE_BYTES = 1 << 16
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
MESSAGES, QUEUES = 750, 3
COMMITTED = 17


def send_fields(number: int) -> dict[str, str]:
    values = (
        "p",
        "orders",
        "TBW102",
        str(QUEUES),
        str(number % QUEUES),
        "0",
        "1",
        "0",
        f"KEYS\x01k{number}",
        "0",
    )
    return {**dict(zip("abcdefghij", values, strict=True)), "k": "false", "m": "false"}


async def fill(address: str) -> None:
    connection = await Connection.open(address)
    for number in range(MESSAGES):
        answer = await connection.request(310, send_fields(number), b"%d" % number * 50)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    group = SubscriptionGroupConfig(group_name="g").encode()
    await connection.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": str(COMMITTED)}
    assert (await connection.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == ResponseCode.SUCCESS
    await connection.close()


async def send_to_another_topic(address: str) -> None:
    connection = await Connection.open(address)
    answer = await connection.request(310, {**send_fields(0), "b": "payments"}, b"x")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await connection.close()


async def count(address: str) -> tuple[int, int]:
    """Messages in all queues, and the committed offset."""
    connection = await Connection.open(address)
    messages = 0
    for queue_id in range(QUEUES):
        answer = await connection.request(30, {"topic": "orders", "queueId": str(queue_id)})
        messages += int(answer.ext["offset"])
    answer = await connection.request(14, {"consumerGroup": "g", "topic": "orders", "queueId": "0"})
    await connection.close()
    return messages, int(answer.ext["offset"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with the same content, one stopped cleanly and one not."""
    places = {}
    for end in ("stopped", "killed"):
        place = places[end] = tmp_path_factory.mktemp(end)
        running = broker(place, settings=SETTINGS)
        running.start()
        asyncio.run(fill(running.address))
        running.restart()  # so that the killed one has queue files and an index, too
        getattr(running, "stop" if end == "stopped" else "kill")()
    assert (places["killed"] / "abort").exists()
    return places


def contents(data: Path) -> dict[str, str]:
    """What is at each path, times aside."""
    return {
        str(path.relative_to(data)): hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else "/"
        for path in sorted(data.rglob("*"))
    }


def options(data: Path) -> list[str]:
    settings = [text for pair in SETTINGS.items() for text in ("--set", "=".join(pair))]
    return ["serve", "--data", str(data), "--namesrv-port", "0", "--broker-port", "0", *settings]


def refused(result: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    for text in ("penstock: ", *texts):
        assert text in line


# ---- directories that cannot be used ----------------------------------------------------------------


def test_a_locked_directory_is_left_alone(
    written: dict[str, Path], tmp_path: Path, penstock: Callable[..., Any]
) -> None:
    data = shutil.copytree(written["killed"], tmp_path / "data")
    before = contents(data)  # first: to close the lock file in the process that holds it gives it up
    holder = RealDisk(data)
    holder.lock("lock")
    refused(penstock(*options(data)), str(data / "lock"), "stop it or give another --data")
    holder.unlock()
    assert contents(data) == before


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path, penstock: Callable[..., Any]) -> None:
    data = tmp_path / "photos"
    (data / "2019").mkdir(parents=True)
    (data / "2019" / "beach.jpg").write_bytes(b"sand")
    before = contents(data)
    refused(penstock(*options(data)), str(data), "not a data directory", "give an empty or a new directory")
    assert contents(data) == before


def test_shards_are_refused_where_they_would_hide_or_harm_what_is_there(
    written: dict[str, Path], tmp_path: Path, penstock: Callable[..., Any]
) -> None:
    whole = shutil.copytree(written["stopped"], tmp_path / "whole")
    shards = tmp_path / "shards"
    for name in ("namesrv", "broker-0", "broker-2"):
        shutil.copytree(written["stopped"], shards / name)
    photos = tmp_path / "photos"
    (photos / "2019").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    for data, count, text in (
        (whole, "2", "holds the data of one broker: give --shards 1"),
        (shards, "2", "holds 3 shards: give --shards 3"),
        (shards, "1", "holds 3 shards: give --shards 3"),
        (photos, "2", "is not a data directory (it holds '2019')"),
        (tmp_path / "file", "2", "is not a directory"),
    ):
        before = contents(tmp_path)
        refused(penstock(*options(data), "--shards", count), f"{data} {text}")
        assert contents(tmp_path) == before


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_path_that_cannot_be_a_directory_is_named(
    tmp_path: Path, penstock: Callable[..., Any], place: str
) -> None:
    (tmp_path / "file").write_text("x")
    refused(penstock(*options(tmp_path / place)), str(tmp_path / place), "ot a directory")
    alone = penstock("namesrv", "--data", str(tmp_path / place), "--namesrv-port", "0")
    refused(alone, str(tmp_path / place), "Not a directory")
    assert (tmp_path / "file").read_text() == "x"


def nth(directory: str, number: int) -> Callable[[Path], Path]:
    return lambda data: sorted((data / directory).iterdir())[number]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[FILE_BYTES // 2 : FILE_BYTES // 2 + 2000] = bytes(2000)
    path.write_bytes(content)


def scribble(path: Path) -> None:
    path.write_text('{"offsetTable":')


def make_file(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.write_text("x")


QUEUE = "consumequeue/orders/0"
DAMAGES = {
    "a log file is cut": ("stopped", nth("commitlog", 1), cut, "mappedFileSizeCommitLog"),
    "the last log file is cut": ("killed", nth("commitlog", -1), cut, "mappedFileSizeCommitLog"),
    "a log file is gone": ("killed", nth("commitlog", 2), Path.unlink, "restore it, or delete"),
    "the last log file is gone": ("stopped", nth("commitlog", -1), Path.unlink, "restore it, or delete"),
    "a queue file is cut": ("stopped", nth(QUEUE, 0), cut, "mappedFileSizeConsumeQueue"),
    "an index file is cut": ("killed", nth("index", 0), cut, "delete the directory index"),
    "the topics are garbage": ("stopped", lambda data: data / "config/topics.json", scribble, "repair it"),
    "the offsets are garbage": (
        "killed",
        lambda data: data / "config/consumerOffset.json",
        scribble,
        "repair it",
    ),
    "the log is a file": ("stopped", lambda data: data / "commitlog", make_file, "not a directory"),
    "the tables are a file": ("killed", lambda data: data / "config", make_file, "not a directory"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_left_as_it_is_and_the_file_is_named(
    written: dict[str, Path], tmp_path: Path, penstock: Callable[..., Any], damage: str
) -> None:
    end, find, harm, advice = DAMAGES[damage]
    data = shutil.copytree(written[end], tmp_path / "data")
    for backup in (data / "config").glob("*.bak"):
        backup.unlink()
    path = find(data)
    harm(path)
    before = contents(data)
    refused(penstock(*options(data)), str(path), advice)
    assert contents(data) == before


def test_damage_in_the_middle_of_an_unchecked_log_is_found_and_not_cut_away(
    written: dict[str, Path], tmp_path: Path, penstock: Callable[..., Any]
) -> None:
    data = shutil.copytree(written["killed"], tmp_path / "data")
    (data / "checkpoint").unlink()
    path = nth("commitlog", 1)(data)
    spoil(path)
    before = contents(data)
    refused(penstock(*options(data)), str(path), "is damaged at byte", "restore")
    assert contents(data) == before


@pytest.mark.parametrize(
    ("end", "find", "harm", "remedy", "expected"),
    [
        pytest.param(
            "stopped",
            nth(QUEUE, 1),
            cut,
            lambda data: shutil.rmtree(data / "consumequeue"),
            MESSAGES,
            id="queues",
        ),
        pytest.param(
            "killed", nth("index", 0), cut, lambda data: shutil.rmtree(data / "index"), MESSAGES, id="index"
        ),
        pytest.param(
            "killed",
            nth("commitlog", 2),
            Path.unlink,
            lambda data: [path.unlink() for path in sorted((data / "commitlog").iterdir())[2:]],
            None,
            id="log",
        ),
    ],
)
def test_the_advice_helps(
    written: dict[str, Path],
    tmp_path: Path,
    penstock: Callable[..., Any],
    end: str,
    find: Callable[[Path], Path],
    harm: Callable[[Path], None],
    remedy: Callable[[Path], Any],
    expected: int | None,
) -> None:
    data = shutil.copytree(written[end], tmp_path / "data")
    harm(find(data))
    assert penstock(*options(data)).returncode == 1
    remedy(data)
    if expected is None:  # what the two log files before the gap hold
        (data / "checkpoint").unlink()
    with broker(data, settings=SETTINGS) as running:
        messages, offset = asyncio.run(count(running.address))
    if expected is None:
        assert 0 < messages < MESSAGES
    else:
        assert messages == expected
    assert offset == COMMITTED


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_queue_file_that_is_gone_is_built_again_from_the_log(
    written: dict[str, Path], tmp_path: Path, start: Callable[..., Any], end: str, number: int
) -> None:
    data = shutil.copytree(written[end], tmp_path / "data")
    assert len(list((data / QUEUE).iterdir())) == 3
    path = nth(QUEUE, number)(data)
    before = path.read_bytes()
    path.unlink()
    serve = start(*options(data))
    assert path.read_bytes() == before
    assert asyncio.run(count(serve.addresses[0])) == (MESSAGES, COMMITTED)
    code, _, errors = serve.stop()
    assert code == 0
    assert f"{path} was missing" in errors


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("place", [QUEUE, "consumequeue/orders"])
def test_a_queue_directory_that_is_gone_is_built_again_from_the_log(
    written: dict[str, Path], tmp_path: Path, start: Callable[..., Any], end: str, place: str
) -> None:
    """Also where other topics have theirs: so that it cannot be told from the directory being empty."""
    data = shutil.copytree(written[end], tmp_path / "data")
    serve = start(*options(data))
    asyncio.run(send_to_another_topic(serve.addresses[0]))
    serve.stop(signal.SIGTERM if end == "stopped" else signal.SIGKILL)
    shutil.rmtree(data / place)
    serve = start(*options(data))
    assert asyncio.run(count(serve.addresses[0])) == (MESSAGES, COMMITTED)
    assert serve.stop()[0] == 0


def test_an_unreadable_table_gives_way_to_the_version_before_it_and_says_so(
    written: dict[str, Path], tmp_path: Path, start: Callable[..., Any]
) -> None:
    data = shutil.copytree(written["stopped"], tmp_path / "data")
    shutil.copy(data / "config" / "topics.json", data / "config" / "topics.json.bak")
    scribble(data / "config" / "topics.json")
    serve = start(*options(data))
    assert asyncio.run(count(serve.addresses[0])) == (MESSAGES, COMMITTED)
    code, _, errors = serve.stop()
    assert code == 0
    assert str(data / "config" / "topics.json") in errors


# ---- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--set", "flushDiskType=PERHAPS"], ["flushDiskType=PERHAPS", "SYNC_FLUSH"]),
        (["--set", "fileReservedTime=-1"], ["fileReservedTime=-1"]),
        (["--set", "messageDelayLevel=1x"], ["messageDelayLevel", "1x"]),
        (["--set", "=5"], ["--set =5", "KEY=VALUE"]),
        (["--set", "brokerIP1=somewhere"], ["somewhere"]),
        (["--namesrv-port", "70000"], ["--namesrv-port 70000", "65535"]),
        (["--broker-port", "-1"], ["--broker-port -1", "65535"]),
        (["--config", "{here}/broken.toml"], ["broken.toml", "line 1"]),
        (["--config", "{here}/table.toml"], ["table.toml", "store is a table"]),
        (["--config", "{here}/binary.conf"], ["binary.conf", "not a text file"]),
        (["--config", "{here}"], ["Is a directory"]),
        (["--ready-file", "{here}/none/ready"], ["none/ready", "no such directory"]),
    ],
)
def test_a_bad_option_is_one_line_and_makes_no_directory(
    tmp_path: Path, penstock: Callable[..., Any], arguments: list[str], texts: list[str]
) -> None:
    (tmp_path / "broken.toml").write_text("a = \n")
    (tmp_path / "table.toml").write_text("[store]\nflush = 1\n")
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe\xd0")
    given = [text.format(here=tmp_path) for text in arguments]
    refused(penstock(*options(tmp_path / "data"), *given), *texts)
    assert not (tmp_path / "data").exists()


def test_a_setting_that_is_not_known_is_taken_and_said(tmp_path: Path, start: Callable[..., Any]) -> None:
    serve = start("serve", "--set", "comitLogSize=5", "--set", "brokerName=b")
    code, _, errors = serve.stop()
    assert code == 0
    assert "comitLogSize" in errors
    assert "brokerName" not in errors


def test_a_ready_file_of_an_earlier_run_goes_before_the_start(
    tmp_path: Path, penstock: Callable[..., Any]
) -> None:
    ready = tmp_path / "ready"
    ready.write_text("{}")
    (tmp_path / "data").write_text("not a directory")
    assert penstock(*options(tmp_path / "data"), "--ready-file", str(ready)).returncode == 1
    assert not ready.exists()


# ---- signals in the middle of work ------------------------------------------------------------------


class Senders:
    """Threads that send until the connection breaks; they know what was confirmed."""

    def __init__(self, addresses: list[str]) -> None:
        self.confirmed: dict[str, list[int]] = {address: [] for address in addresses}
        self.busy = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(address,)) for address in addresses]

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        assert self.busy.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, address: str) -> None:
        asyncio.run(self._send(address))

    async def _send(self, address: str) -> None:
        connection = await Connection.open(address)
        confirmed = self.confirmed[address]

        async def one_by_one() -> None:
            while True:
                answer = await connection.request(310, send_fields(0), b"x" * 100)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                confirmed.append(int(answer.ext["queueOffset"]))
                if len(confirmed) == 100:
                    self.busy.set()

        found = await asyncio.gather(*(one_by_one() for _ in range(8)), return_exceptions=True)
        assert all(isinstance(error, RemotingError) for error in found), found


@pytest.mark.parametrize(
    ("number", "shards"), [(signal.SIGINT, "1"), (signal.SIGTERM, "1"), (signal.SIGTERM, "2")]
)
def test_a_signal_under_load_stops_in_order(
    tmp_path: Path, start: Callable[..., Any], number: signal.Signals, shards: str
) -> None:
    serve = start("serve", "--shards", shards)
    with Senders(serve.addresses) as senders:
        assert serve.stop(number)[::2] == (0, "")
    assert not list((tmp_path / "data").rglob("abort"))
    again = start("serve", "--shards", shards)
    for address, confirmed in zip(again.addresses, senders.confirmed.values(), strict=True):
        messages, _ = asyncio.run(count(address))
        assert sorted(confirmed) == list(range(len(confirmed)))
        assert messages >= len(confirmed)
