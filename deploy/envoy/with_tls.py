"""Prints envoy.yaml with TLS: towards clients with a certificate of Envoy's, and towards the servers.

    deploy/envoy/with_tls.py --cert CERT --key KEY [--servers-ca CA --servers-name NAME] > envoy.yaml

--servers-ca: the servers speak TLS (--tls-cert), with certificates for NAME that CA has signed; without
it the connection to them is not encrypted, as on a private network. The files are named as Envoy sees
them. Needs PyYAML.
"""

import argparse
import pathlib

import yaml

TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."


def file(path):
    return {"filename": str(path)}


def socket(kind, common, **more):
    return {"name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": TLS + kind, "common_tls_context": common, **more}}


def with_tls(config, arguments):
    """The configuration, changed in place."""
    resources = config["static_resources"]
    # gRPC's clients and browsers say which HTTP they speak while they shake hands.
    resources["listeners"][0]["filter_chains"][0]["transport_socket"] = socket(
        "DownstreamTlsContext",
        {"alpn_protocols": ["h2", "http/1.1"], "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
         "tls_certificates": [{"certificate_chain": file(arguments.cert),
                               "private_key": file(arguments.key)}]})
    if arguments.servers_ca is None:
        return config
    for cluster in resources["clusters"]:
        protocol = "h2" if cluster["name"].startswith("grpc") else "http/1.1"
        cluster["transport_socket"] = socket(
            "UpstreamTlsContext",
            {"alpn_protocols": [protocol],
             "validation_context": {
                 "trusted_ca": file(arguments.servers_ca),
                 "match_typed_subject_alt_names": [
                     {"san_type": "DNS", "matcher": {"exact": arguments.servers_name}}]}},
            sni=arguments.servers_name)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--servers-ca")
    parser.add_argument("--servers-name")
    arguments = parser.parse_args()
    if (arguments.servers_ca is None) != (arguments.servers_name is None):
        parser.error("--servers-ca and --servers-name go together")
    config = yaml.safe_load((pathlib.Path(__file__).parent / "envoy.yaml").read_text())
    print(yaml.safe_dump(with_tls(config, arguments), sort_keys=False, width=100,
                         default_flow_style=None))


if __name__ == "__main__":
    main()
