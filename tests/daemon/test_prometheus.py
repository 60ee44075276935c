"""A real Prometheus reads the daemon's metrics directly."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.support import DaemonProcess, eventually, free_port
from tests.tools import need


def scrape_address(daemon: DaemonProcess) -> str:
    (address,) = re.findall(r"metrics at http://(\S+)/metrics", daemon.log)
    return address


@pytest.fixture
def prometheus(folder: Path):
    """Start Prometheus on one target. Return a function that evaluates a query to (labels, value) pairs."""
    (program,) = need("prometheus")
    running: list[subprocess.Popen[bytes]] = []

    def start(target: str):
        config = {
            "global": {"scrape_interval": "200ms"},
            "scrape_configs": [{"job_name": "uma", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        listen = f"127.0.0.1:{free_port()}"
        command = [
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address={listen}",
        ]
        with (folder / "prometheus.log").open("wb") as log:
            running.append(subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        def query(text: str) -> list[tuple[dict[str, str], str]]:
            assert running[0].poll() is None, (folder / "prometheus.log").read_text()
            try:
                with urllib.request.urlopen(f"http://{listen}/api/v1/query?query={text}", timeout=20) as answer:
                    found: dict[str, Any] = json.load(answer)
            except OSError:
                return []  # Prometheus is not up yet
            return [(each["metric"], each["value"][1]) for each in found["data"]["result"]]

        return query

    yield start
    for process in running:
        process.terminate()
        process.wait(60)


def test_prometheus_reads_the_figures(serve, prometheus):
    daemon = serve("--metrics-listen", "127.0.0.1:0")
    query = prometheus(scrape_address(daemon))
    ((labels, _),) = eventually(lambda: query("uma_ready==1"), "never scraped", every_s=0.1)
    assert labels["job"] == "uma"
    assert [value for _, value in query("up")] == ["1"]
    daemon.generate("hello", max_tokens=5)
    eventually(lambda: query("uma_requests_total{reason=%22length%22}==1"), "the request was not counted", every_s=0.1)
    first_token = "uma_time_to_first_token_seconds_count{lane=%22interactive%22}==1"
    eventually(lambda: query(first_token), "nor its first token", every_s=0.1)


def test_the_text_keeps_prometheus_rules(serve):
    (promtool,) = need("promtool")
    daemon = serve()
    daemon.generate("hello", max_tokens=5)
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=daemon.ask("metrics", format="prometheus")["text"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_address_that_others_reach_ends_the_start(folder):
    daemon = DaemonProcess(folder, "--engine", "fake", "--metrics-listen", "0.0.0.0:9464")
    assert daemon.wait() == 1
    assert "E_CONFIG_001" in daemon.log and "metrics.listen" in daemon.log


def test_a_port_that_is_taken_ends_the_start(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        daemon = DaemonProcess(folder, "--engine", "fake", "--metrics-listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert daemon.wait() == 1
    assert "E_CONFIG_001" in daemon.log and "cannot listen" in daemon.log
    assert not (folder / "uma.sock").exists()
