#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/weight_formats.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing {

inline std::vector<const WeightFormat*> packed_formats() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat* format : kWeightFormats) {
    if (format->packed()) formats.push_back(format);
  }
  return formats;
}

// Whether layers over packed weights have the bits of those over the values that these stand for:
// not on AMX, where x becomes integers too.
inline bool multiplies_unpacked(const Kernels& kernels, const WeightFormat& format) {
  return std::string_view(kernels.linear.find(&format)->implementation) != "cpu/amx";
}

// A matrix as a format has it, and the values that it gives back.
struct Packed {
  Packed(const WeightFormat& format, const std::vector<float>& values, int64_t N, int64_t K)
      : format(&format),
        N(N),
        K(K),
        data(static_cast<size_t>(N * format.row_bytes(K))),
        scales(static_cast<size_t>(N * format.row_scales(K))),
        unpacked(values.size()) {
    for (int64_t n = 0; n < N; ++n) {
      std::byte* row = data.data() + n * format.row_bytes(K);
      std::byte* row_scales = scales.data() + n * format.row_scales(K);
      format.pack(values.data() + n * K, K, row, row_scales);
      format.unpack(row, row_scales, K, unpacked.data() + n * K);
    }
  }
  Matrix matrix(const void* data_there, const void* scales_there) const {
    return {.dtype = DType::kPacked,
            .N = N,
            .K = K,
            .data = data_there,
            .format = format,
            .scales = scales_there};
  }

  // What the device multiplies the values as. It is asked with a matrix of any aligned place.
  DType multiplied_as(KernelDevice& device) const {
    static const std::byte somewhere alignas(64) = {};
    const bool rounds = device.kernels().linear.takes_bf16(matrix(&somewhere, &somewhere));
    return rounds ? DType::kBF16 : DType::kF32;
  }

  const WeightFormat* format;
  int64_t N, K;
  std::vector<std::byte> data, scales;
  std::vector<float> unpacked;
};

// Normal values of deviation 1 / sqrt(K) as a format has them, (N, K): drawn and packed once for
// all devices and cases, as the larger ones take longer than all that is asked of them.
inline const Packed& packed_normal(const WeightFormat& format, int N, int K) {
  static std::map<std::tuple<const WeightFormat*, int, int>, Packed> kept;
  const std::tuple key(&format, N, K);
  auto found = kept.find(key);
  if (found == kept.end()) {
    std::mt19937_64 random(static_cast<uint64_t>(N) * 10'007 + static_cast<uint64_t>(K));
    const float deviation = 1 / std::sqrt(static_cast<float>(K));
    const std::vector<float> W = normal_floats(random, static_cast<size_t>(N) * K, deviation);
    found = kept.emplace(key, Packed(format, W, N, K)).first;
  }
  return found->second;
}

}  // namespace recurve::testing
