"""Prints envoy.yaml for other replicas, for sessions in a store that the replicas share, or with TLS.

    deploy/envoy/configure.py [OPTIONS] > envoy.yaml

--replicas HOST[:GRPC:HTTP] ...: the servers, 50051 and 8000 being the ports. Their order is part of the hash
of a session. --shared-sessions: each replica can serve each session (--state-store), so the sessions of one
that drains or is gone hash to the others. --cert, --key: TLS towards clients. --servers-ca: the servers
speak TLS (--tls-cert), with certificates for --servers-name that CA has signed; without it the connection
to them is not encrypted, as on a private network. Envoy reads the files. Needs PyYAML.
"""

import argparse
import copy
import pathlib

import yaml

TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."


def with_replicas(config, replicas):
    """Each cluster of the configuration with these servers: (host, port of gRPC, port of HTTP)."""
    for cluster in config["static_resources"]["clusters"]:
        endpoints = []
        for number, (host, grpc, http) in enumerate(replicas):
            port = grpc if cluster["name"].startswith("grpc") else http
            endpoint = {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
            if cluster["lb_policy"] == "RING_HASH":
                endpoint["metadata"] = {"filter_metadata": {"envoy.lb": {"hash_key": f"recurve-{number}"}}}
            endpoints.append(endpoint)
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def with_shared_sessions(config):
    """Rings without the replicas that drain or are gone. A turn that was refused or did not begin is repeated at
    another replica; one that may have ended only if it has an id, by which it is done once."""
    resources = config["static_resources"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    for protocol in ("grpc", "http"):
        ring = clusters[f"{protocol}_sessions"]
        ring["health_checks"] = copy.deepcopy(clusters[protocol]["health_checks"])
        # Or the rings of gRPC and HTTP would differ for the second by which Envoy delays what it has found.
        ring["common_lb_config"] = {"update_merge_window": "0s"}
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    host = manager["route_config"]["virtual_hosts"][0]
    plain = {one["route"]["cluster"]: one["route"]["retry_policy"] for one in host["routes"]}
    routes = []
    for route in host["routes"]:
        protocol, _, sessions = route["route"]["cluster"].partition("_")
        if sessions:
            with_id = copy.deepcopy(route)
            with_id["match"]["headers"].append({"name": "idempotency-key", "present_match": True})
            with_id["route"]["retry_policy"] = copy.deepcopy(plain[protocol])
            if protocol == "http":
                routes.append(with_id)
            route["route"]["retry_policy"] = copy.deepcopy(plain[protocol])
            route["route"]["retry_policy"]["retry_on"] = plain[protocol]["retry_on"].replace("reset,", "")
        routes.append(route)
    host["routes"] = routes


def file(path):
    return {"filename": str(path)}


def socket(kind, common, **more):
    return {"name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": TLS + kind, "common_tls_context": common, **more}}


def with_tls_of_clients(config, cert, key):
    # gRPC's clients and browsers say which HTTP they speak while they shake hands.
    config["static_resources"]["listeners"][0]["filter_chains"][0]["transport_socket"] = socket(
        "DownstreamTlsContext",
        {"alpn_protocols": ["h2", "http/1.1"], "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
         "tls_certificates": [{"certificate_chain": file(cert), "private_key": file(key)}]})


def with_tls_of_servers(config, ca, name):
    for cluster in config["static_resources"]["clusters"]:
        protocol = "h2" if cluster["name"].startswith("grpc") else "http/1.1"
        cluster["transport_socket"] = socket(
            "UpstreamTlsContext",
            {"alpn_protocols": [protocol],
             "validation_context": {
                 "trusted_ca": file(ca),
                 "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": name}}]}},
            sni=name)


def address(text):
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"HOST:PORT was expected, not {text}")
    return {"address": host, "port_value": int(port)}


def replica(text):
    host, *ports = text.split(":")
    if not host or len(ports) not in (0, 2) or not all(port.isdigit() for port in ports):
        raise argparse.ArgumentTypeError(f"HOST or HOST:GRPC:HTTP was expected, not {text}")
    return (host, *map(int, ports or (50051, 8000)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", nargs="+", type=replica, metavar="HOST[:GRPC:HTTP]")
    parser.add_argument("--shared-sessions", action="store_true")
    parser.add_argument("--listen", type=address, metavar="HOST:PORT")
    parser.add_argument("--admin", type=address, metavar="HOST:PORT")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--servers-ca")
    parser.add_argument("--servers-name")
    arguments = parser.parse_args()
    for one, other in (("cert", "key"), ("servers_ca", "servers_name")):
        if (getattr(arguments, one) is None) != (getattr(arguments, other) is None):
            parser.error(f"--{one} and --{other} go together".replace("_", "-"))
    config = yaml.safe_load((pathlib.Path(__file__).parent / "envoy.yaml").read_text())
    if arguments.listen:
        config["static_resources"]["listeners"][0]["address"] = {"socket_address": arguments.listen}
    if arguments.admin:
        config["admin"]["address"] = {"socket_address": arguments.admin}
    if arguments.replicas:
        with_replicas(config, arguments.replicas)
    if arguments.shared_sessions:
        with_shared_sessions(config)
    if arguments.cert:
        with_tls_of_clients(config, arguments.cert, arguments.key)
    if arguments.servers_ca:
        with_tls_of_servers(config, arguments.servers_ca, arguments.servers_name)
    print(yaml.safe_dump(config, sort_keys=False, width=100, default_flow_style=None))


if __name__ == "__main__":
    main()
