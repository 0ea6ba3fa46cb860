"""``autotune doctor``: what works, what is missing, what mends it."""

import json
from dataclasses import asdict

from autotune.cli import options
from autotune.cli.output import make_console
from autotune.report.health import examine


def doctor(as_json: options.Json = False) -> None:
    """Report device, versions, tables, what works here, and the command that mends what does not."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    console = make_console()
    for finding in findings:
        mark = "ok " if finding.ok else "-- "
        console.print(f"{mark} {finding.subject:15} {finding.text}")
        if finding.fix:
            console.print(f"{'':19} fix: {finding.fix}")
