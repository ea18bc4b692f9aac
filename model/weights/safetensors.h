#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights/mapped_file.h"
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

// A safetensors file, mapped read-only. Tensors come as views into the mapping. Users of tensors in
// place hold the file by shared_from_this().
class SafetensorsFile : public std::enable_shared_from_this<SafetensorsFile> {
 public:
  // Throws std::runtime_error if it cannot be read or parse_safetensors() refuses it.
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(const SafetensorsFile&) = delete;  // the views point back
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // by name
  const TensorView* find(std::string_view name) const;                 // null if there is none

  const MappedFile& mapping() const { return file_; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::vector<TensorView> tensors_;  // names live in header_
};

}  // namespace recurve
