"""What is in packaging/ for monitoring, as far as it can be read without Prometheus: python3 -B -m unittest discover scripts"""

import json
import re
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

ROOT = Path(__file__).resolve().parent.parent
ALERTS, BOARD = ROOT / "packaging/prometheus/alerts.yml", ROOT / "packaging/grafana/perdura.json"


class Monitoring(unittest.TestCase):
    def test_metrics_are_documented(self):
        documented = (ROOT / "docs/operations/metrics.md").read_text()
        for path in (ALERTS, BOARD):
            names = set(re.findall(r"\b(?:perdura|process)_[a-z_]+", path.read_text()))
            self.assertGreater(len(names), 20)
            for name in names:
                self.assertIn("`" + re.sub("_bucket$", "", name) + "`", documented)

    @unittest.skipUnless(yaml, "PyYAML is not installed")
    def test_alerts(self):
        rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
        names = [rule["alert"] for rule in rules]
        self.assertEqual(len(names), len(set(names)))
        for rule in rules:
            self.assertTrue(rule["expr"] and rule["annotations"]["summary"], rule)
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_dashboard(self):
        board = json.loads(BOARD.read_text())
        panels = board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        variables = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            self.assertTrue(panel["type"] == "row" or panel["targets"])
            for target in panel.get("targets", []):
                used = set(re.findall(r"\$\{?(\w+)", target["expr"] + target["datasource"]["uid"]))
                self.assertLessEqual(used, variables)
        taken = [(p["gridPos"]["x"] + i, p["gridPos"]["y"] + j)
                 for p in panels for i in range(p["gridPos"]["w"]) for j in range(p["gridPos"]["h"])]
        self.assertEqual(len(taken), len(set(taken)), "panels lie on each other")


if __name__ == "__main__":
    unittest.main()
