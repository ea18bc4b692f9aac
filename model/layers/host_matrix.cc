#include "model/layers/host_matrix.h"

#include <algorithm>

#include "kernels/bf16.h"
#include "kernels/check.h"
#include "model/weights/convert.h"

namespace recurve {

namespace {

bool bf16_rounds(float value) { return bf16_to_f32(f32_to_bf16(value)) != value; }

}  // namespace

HostMatrix::HostMatrix(Backend& backend, const std::vector<float>& values, int64_t K,
                       const OtherType& type) {
  const bool widened = type.exact && std::ranges::any_of(values, bf16_rounds);
  const DType dtype = widened ? DType::kF32 : type.dtype;
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  const int64_t count = static_cast<int64_t>(values.size());
  CHECK(count % K == 0);
  matrix_ = Matrix{.dtype = dtype, .N = count / K, .K = K, .data = nullptr};
  if (values.empty()) return;
  data_ = backend.allocate(values.size() * size_of(dtype));
  matrix_.data = data_.data();
  std::vector<uint16_t> rounded;
  if (dtype == DType::kBF16) {
    for (const float value : values) rounded.push_back(f32_to_bf16(value));
  }
  const void* from = dtype == DType::kBF16 ? static_cast<const void*>(rounded.data())
                                           : static_cast<const void*>(values.data());
  const std::unique_ptr<Stream> stream = backend.make_stream();
  backend.upload(data_.data(), from, data_.bytes(), *stream);
  stream->wait();
}

}  // namespace recurve
