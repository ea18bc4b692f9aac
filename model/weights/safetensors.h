#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights/tensor_view.h"

namespace recurve {

// The safetensors format: a little-endian u64 header length, a JSON header
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"key": "text", ...}}
// and the data, into which the offsets point. The data of the tensors covers it without overlap,
// gap or rest. https://github.com/huggingface/safetensors#format
struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data; end - begin fits type and shape
};

struct SafetensorsHeader {
  uint64_t data_begin = 0;                // bytes from the start of the file
  std::vector<SafetensorsEntry> entries;  // by name
};

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit
inline constexpr size_t kMaxRank = 8;

// Parses and checks the header of a whole file in memory. `file` is its name in messages.
// Allocates at most a small multiple of the header's length. Throws std::runtime_error with one
// sentence that names file, tensor, wanted and found.
SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

// A safetensors file, mapped read-only. Tensors come as views into the mapping.
class SafetensorsFile {
 public:
  // Throws std::runtime_error if it cannot be read or parse_safetensors() refuses it.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;  // the views point back
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // by name
  const TensorView* find(std::string_view name) const;                 // null if there is none

  // Throws if the file is now shorter than it was: reading on would end the process by SIGBUS.
  // To be called before each larger read; a file cut between the check and the read still does.
  void check_still_whole() const;

  // Gives the mapped pages of this range back to the system; reading them again is allowed.
  void release(const std::byte* data, size_t bytes) const;

 private:
  void map();
  void make_views();

  std::string path_;
  int fd_ = -1;
  const std::byte* bytes_ = nullptr;  // (size_) the mapping
  size_t size_ = 0;
  SafetensorsHeader header_;
  std::vector<TensorView> tensors_;
};

}  // namespace recurve
