#include "server/startup/security.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "server/net/bind.h"
#include "server/observe/log.h"
#include "server/observe/otlp.h"
#include "server/startup/store_access.h"

namespace recurve {

std::shared_ptr<Keyring> make_keys(const Options& o) {
  if (o.keys.empty()) return nullptr;
  return std::make_shared<Keyring>(o.keys, [file = o.keys](const std::string& problem) {
    if (problem.empty()) return log_event(LogLevel::kInfo, "keys_reloaded", {{"file", file}});
    log_event(LogLevel::kError, "keys_not_reloaded", {{"what", problem}});
  });
}

void check_network(const Options& o) {
  check_store_network(o);
  if (o.insecure_network) return;
  const bool authenticated = !o.keys.empty() || !o.tls_client_ca.empty();
  if (authenticated && !o.tls_cert.empty()) return;
  const std::pair<const char*, const std::string&> addresses[] = {
      {"--listen", o.listen}, {"--http", o.http}, {"--metrics", o.metrics}, {"--admin", o.admin}};
  for (const auto& [flag, address] : addresses) {
    if (address.empty() || is_local_address(address, flag)) continue;
    throw std::runtime_error(fmt::format(
        "{} {} can be reached by other machines without {}: give {}, listen on 127.0.0.1, or allow "
        "it with --insecure-network",
        flag, address, o.tls_cert.empty() ? "TLS" : "a key",
        o.tls_cert.empty()
            ? (authenticated ? "--tls-cert and --tls-key" : "--tls-cert, --tls-key and --keys")
            : "--keys"));
  }
}

namespace fs = std::filesystem;

void check_key_files(const Options& o) {
  if (o.state_dir.empty()) return;
  std::error_code none;  // opening reports the error
  const auto check = [&](const char* flag, const std::string& file) {
    if (file.empty()) return;
    for (fs::path at : {fs::absolute(file, none), fs::weakly_canonical(file, none)}) {
      while (at.has_relative_path()) {
        at = at.parent_path();
        if (!fs::equivalent(at, o.state_dir, none)) continue;
        throw std::runtime_error(
            fmt::format("{} {} is in --state-dir {}: move the file to another folder", flag, file,
                        o.state_dir));
      }
    }
  };
  check("--keys", o.keys);
  check("--state-keys", o.state_keys);
}

namespace {

// Digits of a port; one that does not exist is 0, which nothing connects to.
uint16_t port_of(const std::string& digits) {
  const unsigned long port = std::stoul(digits);
  return port <= UINT16_MAX ? static_cast<uint16_t>(port) : 0;
}

// What the flags name: each path, the targets of its links, and the folder of a file, which may be
// replaced while the server runs.
SandboxFiles needed_files(const Options& o) {
  SandboxFiles files;
  const auto add = [&](const std::string& path) {
    std::error_code none;
    if (path.empty() || !fs::exists(path, none)) return;
    files.read.push_back(path);
    if (!fs::is_directory(path, none)) {  // files that belong to it are in its folder
      files.read.push_back(fs::absolute(path, none).parent_path());
      files.read.push_back(fs::canonical(path, none).parent_path());
      return;
    }
    for (const auto& entry : fs::directory_iterator(path, none)) {
      if (entry.is_symlink(none)) files.read.push_back(fs::canonical(entry.path(), none));
    }
  };
  for (const ModelEntry& model : o.models) add(model.path);
  if (!o.model_root.empty()) files.read.push_back(o.model_root);
  if (o.tokenizer != "none") add(o.tokenizer);
  add(o.chat_template);
  for (const auto* const paths : {&o.initial_states, &o.adapters}) {
    for (const NamedPath& one : *paths) add(one.path);
  }
  StoreNeeds store = needs_of_store(o);
  files.connects = std::move(store.ports);
  std::vector<std::string> replaced = std::move(store.files);
  for (const auto& file : {o.tls_cert, o.tls_key, o.tls_client_ca, o.keys, o.state_keys}) {
    replaced.push_back(file);
  }
  for (const std::string& file : replaced) {
    std::error_code none;
    if (file.empty()) continue;
    files.read.push_back(fs::absolute(file, none).parent_path());
    files.read.push_back(fs::canonical(file, none).parent_path());
  }
  if (!o.state_dir.empty()) {
    std::error_code none;  // opening it reports the error
    fs::create_directories(o.state_dir, none);
    files.write.push_back(o.state_dir);
  }
  for (const std::string& address : {o.listen, o.http, o.metrics, o.admin}) {
    try {
      const std::string name = unix_socket_path(address);
      if (!name.empty()) files.sockets.push_back(fs::absolute(name).parent_path());
    } catch (const std::runtime_error&) {  // listening reports the error
    }
  }
  try {
    if (!o.traces.empty()) files.connects.push_back(port_of(parse_otlp_url(o.traces).port));
  } catch (const std::invalid_argument&) {  // the tracer reports the error
  }
  return files;
}

}  // namespace

std::string give_up_privileges(const Options& o) {
  const bool on_gpu = std::ranges::any_of(options_of_models(o), &Options::on_gpu);
  // CUDA may start nvidia-modprobe, which creates the device files as root.
  if (!on_gpu) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (!o.keys.empty() || !o.state_keys.empty()) {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_CORE, &none);
  }
  if (on_gpu) return "none: CUDA may start programs and opens its own files";
  if (!o.sandbox) return "none: --sandbox off";
  return enter_sandbox(needed_files(o));
}

}  // namespace recurve
