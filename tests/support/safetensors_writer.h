#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A file of any header, right or wrong. length: what its first 8 bytes say, if not the truth.
inline std::string safetensors_bytes(std::string_view header, std::string_view data,
                                     std::optional<uint64_t> length = {}) {
  const uint64_t says = length.value_or(header.size());
  std::string file(sizeof(says), '\0');
  std::memcpy(file.data(), &says, sizeof(says));
  return file.append(header).append(data);
}

// Writes well-formed safetensors files, tensors in the order added and without padding.
class SafetensorsWriter {
 public:
  SafetensorsWriter& add(const std::string& name, const std::string& dtype,
                         const std::vector<int64_t>& shape, std::string_view bytes) {
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
    return *this;
  }
  SafetensorsWriter& add_f32(const std::string& name, const std::vector<int64_t>& shape,
                             const std::vector<float>& values) {
    return add(name, "F32", shape, bytes_of(values));
  }
  // Values as the bits of the type.
  SafetensorsWriter& add_f16(const std::string& name, const std::vector<int64_t>& shape,
                             const std::vector<uint16_t>& bits) {
    return add(name, "F16", shape, bytes_of(bits));
  }
  SafetensorsWriter& add_bf16(const std::string& name, const std::vector<int64_t>& shape,
                              const std::vector<uint16_t>& bits) {
    return add(name, "BF16", shape, bytes_of(bits));
  }

  // The data begins at a multiple of so many bytes.
  SafetensorsWriter& align(size_t alignment) {
    alignment_ = alignment;
    return *this;
  }

  std::string bytes() const {
    std::string header = header_.dump();
    while ((sizeof(uint64_t) + header.size()) % alignment_ != 0) header += ' ';
    return safetensors_bytes(header, data_);
  }
  void write(const std::filesystem::path& path) const { write_file(path, bytes()); }

 private:
  nlohmann::ordered_json header_ = nlohmann::ordered_json::object();
  std::string data_;
  size_t alignment_ = 1;
};

}  // namespace recurve
