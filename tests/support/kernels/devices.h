#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace recurve::testing {

// The devices whose memory is the machine's own.
inline std::vector<std::string> host_devices() {
#if RECURVE_CPU
  return {"reference", "cpu"};
#else
  return {"reference"};
#endif
}

// The devices this build knows, whether or not the machine has them.
inline std::vector<std::string> all_devices() {
  std::vector<std::string> devices = host_devices();
#if RECURVE_CUDA
  devices.push_back("cuda:0");
#endif
  return devices;
}

// Why the device cannot be used on this machine, for GTEST_SKIP; empty if it can.
inline std::string why_unusable(const std::string& device) {
  const std::vector<std::string> host = host_devices();
  if (device == "cpu" && host.back() != "cpu") return "built without Highway";
  if (!device.starts_with("cuda:")) return "";
  try {
    make_backend(device);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// The device as part of a test's name.
inline std::string test_name(std::string device) {
  for (char& c : device) {
    if (c == ':') c = '_';
  }
  return device;
}

}  // namespace recurve::testing
