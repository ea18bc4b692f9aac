#include "model/weights/safetensors.h"

#include <algorithm>

namespace recurve {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), file_.path())) {
  const std::byte* data = file_.bytes().data() + header_.data_begin;
  tensors_.reserve(header_.entries.size());
  for (const SafetensorsEntry& entry : header_.entries) {
    tensors_.push_back(TensorView{.name = entry.name,
                                  .type = entry.type,
                                  .shape = entry.shape,
                                  .data = data + entry.begin,
                                  .bytes = entry.end - entry.begin,
                                  .file = this,
                                  .generated = {}});
  }
  file_.release(file_.bytes().data(), header_.data_begin);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors_, name, {}, &TensorView::name);
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace recurve
