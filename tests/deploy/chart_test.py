"""The chart: rendered by Helm for six sets of values, each as Kubernetes' own schemas want it and as
it was before (chart/*.golden.yaml; UPDATE_GOLDENS=1 writes them anew), and what its schema refuses."""

import os
import pathlib

import helm_python as helm
import jsonschema
import kubernetes_validate
import pytest
import yaml
from conftest import ROOT
from containers import assert_listens, run

CHART = ROOT / "deploy/chart"
SETS = sorted(path for path in (pathlib.Path(__file__).parent / "chart").glob("*.yaml")
              if ".golden" not in path.name)
# Of operators and gateways, whose schemas are not Kubernetes'.
OTHERS = {"ServiceMonitor", "ScaledObject", "InferencePool", "HTTPRoute"}


def render(values):
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name="demo", namespace="models")
    return "".join(f"---\n# {name}\n{text.strip()}\n" for name, text in sorted(rendered.items())
                   if name.endswith(".yaml") and text.strip())


def objects(text):
    return [one for one in yaml.safe_load_all(text) if one]


def test_there_are_six():
    assert len(SETS) == 6


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_rendered(path, tree):
    text = render(yaml.safe_load(path.read_text()))
    made = objects(text)
    for one in made:
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, "1.31", strict=True)
    golden = path.with_suffix(".golden.yaml")
    if "UPDATE_GOLDENS" in os.environ:
        golden.write_text(text)
    assert text == golden.read_text()

    # What one object says of another is there.
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in made}
    server = kinds["StatefulSet", "demo-recurve"]["spec"]
    assert ("Service", server["serviceName"]) in kinds
    pod = server["template"]["spec"]
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in server.get("volumeClaimTemplates", [])}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        mounted = [one["name"] for one in container["volumeMounts"]]
        assert set(mounted) <= volumes and len(set(mounted)) == len(mounted)
        assert container["securityContext"]["readOnlyRootFilesystem"]
    ports = {one["name"] for one in pod["containers"][0]["ports"]}
    for (kind, _), one in kinds.items():
        if kind == "Service":
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
            assert one["spec"]["selector"].items() <= server["template"]["metadata"]["labels"].items()
    # Every variable is a flag's, and a drain fits into the grace.
    help_text = run(tree / "bin/recurve-server", "--help")
    variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert [name for name in variables if f"Env:{name}" not in help_text] == []
    assert_listens(tree, variables)
    drain = int(variables["RECURVE_SERVER_DRAIN_SECONDS"])
    sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= drain + sleep + 10


# From the reference of inference.networking.k8s.io/v1: what it requires and allows.
POOL = {
    "type": "object", "additionalProperties": False,
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {
            "type": "object", "additionalProperties": False, "required": ["matchLabels"],
            "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "targetPorts": {
            "type": "array", "minItems": 1, "maxItems": 8,
            "items": {"type": "object", "additionalProperties": False, "required": ["number"],
                      "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}},
        },
        "endpointPickerRef": {
            "type": "object", "additionalProperties": False, "required": ["name", "port"],
            "properties": {
                "group": {"type": "string"}, "kind": {"type": "string"},
                "name": {"type": "string", "minLength": 1, "maxLength": 253},
                "port": {"type": "object", "additionalProperties": False, "required": ["number"],
                         "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}},
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}


def test_the_pool_fits_the_server():
    values = yaml.safe_load((pathlib.Path(__file__).parent / "chart/pool.yaml").read_text())
    kinds = {one["kind"]: one for one in objects(render(values))}
    pool = kinds["InferencePool"]["spec"]
    jsonschema.validate(pool, POOL)
    pod = kinds["StatefulSet"]["spec"]["template"]
    assert pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    http = [one["containerPort"] for one in pod["spec"]["containers"][0]["ports"] if one["name"] == "http"]
    assert [one["number"] for one in pool["targetPorts"]] == http
    backend, = kinds["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert backend == {"group": kinds["InferencePool"]["apiVersion"].split("/")[0], "kind": "InferencePool",
                       "name": kinds["InferencePool"]["metadata"]["name"]}

    config = yaml.safe_load(kinds["ConfigMap"]["data"]["config.yaml"])
    plugins = {one["type"]: one.get("parameters", {}) for one in config["plugins"]}
    used = [one["pluginRef"] for one in config["schedulingProfiles"][0]["plugins"]]
    for source in config["dataLayer"]["sources"]:
        used += [source["pluginRef"], *(one["pluginRef"] for one in source["extractors"])]
    assert sorted(used) == sorted(plugins)
    extractor = plugins["core-metrics-extractor"]
    engine, = extractor["engineConfigs"]
    assert extractor["defaultEngine"] == engine["name"]
    assert plugins["session-affinity-scorer"]["headerName"] == "x-recurve-session"


def test_a_pool_is_not_made_where_the_picker_would_be_refused():
    values = {"tls": {"secret": "t"}, "keys": {"secret": "k"},
              "inferencePool": {"enabled": True, "picker": {"service": "picker"}}}
    with pytest.raises(helm.HelmError, match="tls.clientCa"):
        render(values)


def test_other_pods_are_let_in_on_purpose():
    for values in ({}, {"keys": {"secret": "k"}}, {"tls": {"secret": "t"}}):
        with pytest.raises(helm.HelmError, match="insecureNetwork=true"):
            render(values)
    for values in ({"tls": {"secret": "t"}, "keys": {"secret": "k"}},
                   {"tls": {"secret": "t", "clientCa": "c"}}):
        assert "INSECURE" not in render(values)


@pytest.mark.parametrize("values, of", [
    ({"replica": 2}, "replica"),
    ({"replicas": -1}, "replicas"),
    ({"gpus": 2}, "gpus"),
    ({"flags": {"LISTEN": "0.0.0.0:1"}}, "LISTEN"),
    ({"flags": {"slots": "4"}}, "slots"),
    ({"flags": {"SLOTS": 4}}, "SLOTS"),
    ({"tls": {"clientCa": "ca"}}, "tls"),
    ({"model": {"claim": "a", "fetch": {"image": "b"}}}, "model"),
    ({"state": {"size": "many"}}, "size"),
    ({"image": {"repository": ""}}, "repository"),
    ({"service": {"type": "ExternalName"}}, "type"),
    ({"autoscaling": {"queueSeconds": 0}}, "queueSeconds"),
    ({"traces": {"host": "http://collector"}}, "host"),
    ({"traces": {"ratio": 2}}, "ratio"),
    ({"flags": {"KEYS": "/keys"}}, "KEYS"),
    ({"inferencePool": {"enabled": True}}, "picker"),
    ({"store": {"url": "bucket"}}, "url"),
    ({"store": {"url": "s3://bucket", "endpoint": "host"}}, "endpoint"),
    ({"inferencePool": {"enabled": True, "picker": {"service": ""}}}, "service"),
])
def test_refused(values, of):
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError, match=of):
        chart.validate_schema(values)


def test_lint():
    findings = helm.lint(str(CHART))
    assert findings["errors"] == []
    assert [one["error"] for one in findings["messages"]] == ["icon is recommended"]
