#include "model/weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "kernels/check.h"
#include "kernels/weight_formats.h"
#include "model/weights/convert.h"
#include "model/weights/json_file.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kListed = 10;  // problems of a kind that a message spells out
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string wanted_text(const std::vector<Shape>& shapes) {
  std::vector<std::string> texts;
  for (const Shape& shape : shapes) texts.push_back(shape_text(shape));
  return fmt::format("F32, F16 or BF16 {}", joined(texts, " or "));
}

// A shard must be a file in the directory, for any index.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// tensor name -> file name
using WeightMap = std::map<std::string, std::string, std::less<>>;

WeightMap read_weight_map(const fs::path& index) {
  const nlohmann::json json = read_json_file(index, kMaxIndexBytes);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    throw std::runtime_error(fmt::format("{}: wanted an object \"weight_map\", found {}",
                                         index.string(),
                                         map == json.end() ? "none" : map->type_name()));
  }
  WeightMap result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      throw std::runtime_error(fmt::format(
          "{}: tensor {}: wanted the name of a file in the same directory, found {}",
          index.string(), in_quotes(tensor),
          file.is_string() ? in_quotes(file.get_ref<const std::string&>()) : file.type_name()));
    }
    result.emplace(tensor, file.get<std::string>());
  }
  if (result.empty()) {
    throw std::runtime_error(
        fmt::format("{}: wanted tensors in its weight_map, found none", index.string()));
  }
  return result;
}

// Every tensor of the shard must be mapped to it.
void check_tensors_are_mapped(const SafetensorsFile& shard, const std::string& shard_name,
                              const WeightMap& map, const std::string& index) {
  for (const TensorView& tensor : shard.tensors()) {
    const auto at = map.find(tensor.name);
    if (at == map.end()) {
      throw std::runtime_error(
          fmt::format("{}: tensor {}: wanted it in the weight_map of {}, found "
                      "it only here",
                      shard.path(), in_quotes(tensor.name), index));
    }
    if (at->second != shard_name) {
      throw std::runtime_error(
          fmt::format("{}: tensor {}: wanted it in {} only, as {} says, found it here too",
                      shard.path(), in_quotes(tensor.name), in_quotes(at->second), index));
    }
  }
}

[[noreturn]] void no_weights(const fs::path& directory) {
  std::string hint;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (fs::exists(directory / name)) {
      hint = fmt::format(
          "; it has {}, which python -m weights_tools convert turns into safetensors", name);
    }
  }
  throw std::runtime_error(fmt::format("{}: wanted {} or {}, found neither{}", directory.string(),
                                       kSingle, kIndex, hint));
}

constexpr const char* kConvert = "convert it first: python -m weights_tools convert";

// Whether the path reads as ORGANISATION/NAME of the Hugging Face Hub.
bool is_hub_id(const std::string& path) {
  const size_t slash = path.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < path.size() &&
         path.find('/', slash + 1) == std::string::npos && path.front() != '.';
}

[[noreturn]] void no_directory(const fs::path& path) {
  std::error_code error;
  const bool is_file = fs::exists(path, error);
  std::string hint;
  if (is_file && path.filename() == "config.json") hint = ": give its directory";
  if (is_file && path.extension() != ".json") {
    hint = fmt::format("; {} {} DIR", kConvert, path.string());
  }
  if (!is_file && is_hub_id(path.string())) {
    hint =
        fmt::format("; for a model of the Hub, download it first: hf download {} --local-dir DIR",
                    path.string());
  }
  throw std::runtime_error(fmt::format("{}: wanted the directory of a model, found {}{}",
                                       path.string(), is_file ? "a file" : "nothing of that name",
                                       hint));
}

// A directory without config.json may have a file that is a whole model.
void check_has_config(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / "config.json", error)) return;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const fs::path& file = entry.path();
    if (file.extension() != ".gguf" && file.extension() != ".pth") continue;
    throw std::runtime_error(fmt::format("{}: wanted config.json, found {}; {} {} DIR",
                                         directory.string(), file.filename().string(), kConvert,
                                         file.string()));
  }
}

std::string packed_name(std::string_view matrix, const WeightFormat& format) {
  return fmt::format("{}.{}", matrix, format.name);
}

uint64_t hash_of(std::string_view text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) no_directory(directory);
  check_has_config(directory);
  Checkpoint checkpoint;
  checkpoint.where_ = directory.string();
  checkpoint.config_file_ = (directory / "config.json").string();
  checkpoint.config_ = read_json_file(checkpoint.config_file_, kMaxConfigBytes);
  if (fs::exists(directory / kIndex)) {
    checkpoint.open_sharded(directory / kIndex);
  } else if (fs::exists(directory / kSingle)) {
    checkpoint.open_single(directory / kSingle);
  } else {
    no_weights(directory);
  }
  return checkpoint;
}

Checkpoint Checkpoint::random(nlohmann::json config, uint64_t seed, std::string config_file) {
  Checkpoint checkpoint;
  checkpoint.where_ = "(random)";
  checkpoint.config_ = std::move(config);
  checkpoint.config_file_ = std::move(config_file);
  checkpoint.random_ = true;
  checkpoint.seed_ = seed;
  return checkpoint;
}

Checkpoint Checkpoint::random_from(const fs::path& config, uint64_t seed) {
  std::error_code error;
  const fs::path file = fs::is_directory(config, error) ? config / "config.json" : config;
  return random(read_json_file(file, kMaxConfigBytes), seed, file.string());
}

void Checkpoint::open_single(const fs::path& file) {
  weights_file_ = file.string();
  add_file(std::make_shared<SafetensorsFile>(file));
}

void Checkpoint::open_sharded(const fs::path& index) {
  weights_file_ = index.string();
  const WeightMap map = read_weight_map(index);
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : map) shard_names.insert(shard);
  if (fs::exists(index.parent_path() / kSingle) && !shard_names.contains(kSingle)) {
    throw std::runtime_error(
        fmt::format("{}: wanted {} or {}, found both; remove the one that is stale",
                    index.parent_path().string(), kSingle, kIndex));
  }
  for (const std::string& name : shard_names) {
    if (!fs::exists(index.parent_path() / name)) {
      throw std::runtime_error(fmt::format("{}: wanted the file {} that it names, found none",
                                           weights_file_, in_quotes(name)));
    }
    auto shard = std::make_shared<SafetensorsFile>(index.parent_path() / name);
    check_tensors_are_mapped(*shard, name, map, weights_file_);
    add_file(std::move(shard));
  }
  for (const auto& [tensor, shard] : map) {
    if (find(tensor) == nullptr) {
      throw std::runtime_error(fmt::format("{}: tensor {}: wanted it here, as {} says, found none",
                                           (index.parent_path() / shard).string(),
                                           in_quotes(tensor), weights_file_));
    }
  }
}

void Checkpoint::add_file(std::shared_ptr<SafetensorsFile> file) {
  for (const TensorView& tensor : file->tensors()) tensors_.emplace(tensor.name, Tensor{tensor});
  files_.push_back(std::move(file));
}

Checkpoint::Tensor* Checkpoint::lookup(std::string_view name) {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  if (const auto at = tensors_.find(name); at != tensors_.end()) return &at->second.view;
  for (const WeightFormat* format : kWeightFormats) {
    if (!format->packed()) continue;
    const auto at = tensors_.find(packed_name(name, *format));
    if (at != tensors_.end()) return &at->second.view;
  }
  return nullptr;
}

bool Checkpoint::is_packed() const {
  return std::ranges::any_of(tensors_, [](const auto& tensor) {
    return std::ranges::any_of(kWeightFormats, [&](const WeightFormat* format) {
      return format->packed() && tensor.first.ends_with(packed_name("", *format));
    });
  });
}

std::string Checkpoint::detect_prefix(const std::vector<std::string>& prefixes,
                                      std::string_view name) const {
  CHECK(!prefixes.empty());
  for (const std::string& prefix : prefixes) {
    if (find(prefix + std::string(name)) != nullptr) return prefix;
  }
  return prefixes.front();
}

TensorView Checkpoint::take(const std::string& name, const Shape& shape) {
  return take_any({name}, {shape});
}

TensorView Checkpoint::take_any(const std::vector<std::string>& names,
                                const std::vector<Shape>& shapes) {
  CHECK(!names.empty() && !shapes.empty());
  if (random_) return generate(names.front(), shapes.front());
  for (const std::string& name : names) {
    if (Tensor* tensor = lookup(name)) return take_found(*tensor, shapes);
  }
  note_missing(names, shapes);
  return {};
}

TensorView Checkpoint::take_found(Tensor& tensor, const std::vector<Shape>& shapes) {
  tensor.used = true;
  const TensorView& view = tensor.view;
  const bool fits = std::ranges::find(shapes, view.shape) != shapes.end();
  if (fits && is_weight_type(view.type)) return view;
  misfit_.add(fmt::format("{}: tensor {}: wanted {}, found {}", view.path(), in_quotes(view.name),
                          wanted_text(shapes), type_and_shape(view)));
  return {};
}

StoredMatrix Checkpoint::take_matrix(const std::string& name, int64_t rows, int64_t K,
                                     const Shape& shape) {
  for (const WeightFormat* format : kWeightFormats) {
    const std::string packed = packed_name(name, *format);
    if (random_ || !format->packed() || lookup(name) != nullptr || lookup(packed) == nullptr) {
      continue;
    }
    StoredMatrix matrix{.values = take_bytes(packed, rows, format->row_bytes(K)),
                        .K = K,
                        .format = format,
                        .scales = {}};
    if (format->group_scale > 0) {
      matrix.scales = take_bytes(packed + ".scales", rows, format->row_scales(K));
    }
    return matrix;
  }
  // Random values are of a size that follows from K.
  StoredMatrix matrix{.values = take(name, shape.empty() || random_ ? Shape{rows, K} : shape),
                      .K = K,
                      .format = nullptr,
                      .scales = {}};
  if (matrix.values.present()) matrix.values.shape = {rows, K};
  return matrix;
}

// A tensor of any type and shape that is so many rows of so many bytes.
TensorView Checkpoint::take_bytes(const std::string& name, int64_t rows, int64_t row_bytes) {
  const std::string wanted = fmt::format("{} rows of {} bytes", rows, row_bytes);
  Tensor* tensor = lookup(name);
  if (tensor == nullptr) {
    missing_.add(fmt::format("{}: tensor {}: wanted {}, found none", weights_file_, in_quotes(name),
                             wanted));
    return {};
  }
  tensor->used = true;
  const TensorView& view = tensor->view;
  const auto bytes = checked_product(rows, row_bytes);
  if (view.rows() == rows && bytes && view.bytes == static_cast<size_t>(*bytes)) return view;
  misfit_.add(fmt::format("{}: tensor {}: wanted {}, found {}", view.path(), in_quotes(view.name),
                          wanted, type_and_shape(view)));
  return {};
}

void Checkpoint::note_missing(const std::vector<std::string>& names,
                              const std::vector<Shape>& shapes) {
  std::vector<std::string> texts;
  for (const std::string& name : names) texts.push_back(in_quotes(name));
  missing_.add(fmt::format("{}: tensor {}: wanted {}, found none", weights_file_,
                           joined(texts, " or "), wanted_text(shapes)));
}

TensorView Checkpoint::generate(const std::string& name, const Shape& shape) {
  const std::optional<int64_t> count = checked_count(shape);
  const auto bytes = count ? checked_product(*count, size_of(StoredType::kF32)) : std::nullopt;
  if (!bytes) {
    throw std::runtime_error(fmt::format("{}: tensor {}: wanted a shape that fits memory, found {}",
                                         config_file_, in_quotes(name), shape_text(shape)));
  }
  const bool is_norm = name.find("norm") != std::string::npos;
  const auto fan_in = static_cast<float>(
      shape.size() < 2 || shape[0] == 0 ? 1 : std::max<int64_t>(*count / shape[0], 1));
  GeneratedValues values{.seed = seed_ ^ hash_of(name)};
  values.mean = is_norm ? 1.0f : 0.0f;
  values.stddev = is_norm || shape.size() < 2 ? 0.1f : 1 / std::sqrt(fan_in);
  return TensorView{.name = *generated_names_.insert(name).first,
                    .type = StoredType::kF32,
                    .shape = shape,
                    .data = nullptr,
                    .bytes = static_cast<size_t>(*bytes),
                    .file = nullptr,
                    .generated = values};
}

void Checkpoint::allow_extra(const std::vector<std::string>& names) {
  allowed_extra_.insert(names.begin(), names.end());
}

int64_t Checkpoint::skip(const std::vector<std::string>& prefixes) {
  int64_t count = 0;
  for (const auto& file : files_) {
    for (const TensorView& view : file->tensors()) {
      if (std::ranges::none_of(prefixes, [&](const auto& p) { return view.name.starts_with(p); })) {
        continue;
      }
      allowed_extra_.insert(std::string(view.name));
      ++count;
    }
  }
  return count;
}

void Checkpoint::copy_on_finish(const TensorView& view, DType to, Backend& backend, void* device) {
  if (view.present()) {
    copies_.push_back({.from = view, .to = to, .backend = &backend, .device = device});
  }
}

void Checkpoint::count_bytes(const StoredMatrix& matrix, const WeightFormat& to) {
  format_bytes_[&to] += matrix.values.rows() * (to.row_bytes(matrix.K) + to.row_scales(matrix.K));
}

void Checkpoint::copy_on_finish(const StoredMatrix& matrix, const WeightFormat& to,
                                Backend& backend, void* data, void* scales) {
  if (!matrix.values.present()) return;
  count_bytes(matrix, to);
  if (!to.packed() && matrix.format == nullptr) {
    return copy_on_finish(matrix.values, to.dtype, backend, data);
  }
  if (matrix.format == &to) {
    copy_on_finish(matrix.values, DType::kPacked, backend, data);
    return copy_on_finish(matrix.scales, DType::kPacked, backend, scales);
  }
  copies_.push_back({.from = matrix.values,
                     .to = to.dtype,
                     .backend = &backend,
                     .device = data,
                     .matrix = matrix,
                     .format = &to,
                     .scales = scales});
}

void Checkpoint::copy_transposed_on_finish(const StoredMatrix& matrix, const WeightFormat& to,
                                           Backend& backend, void* data, void* scales,
                                           int64_t first, int64_t outputs) {
  if (!matrix.values.present()) return;
  count_bytes(matrix, to);
  copies_.push_back({.from = matrix.values,
                     .to = to.dtype,
                     .backend = &backend,
                     .device = data,
                     .matrix = matrix,
                     .format = &to,
                     .scales = scales,
                     .first = first,
                     .outputs = outputs});
}

bool Checkpoint::can_map(const StoredMatrix& matrix, const WeightFormat& format) const {
  const TensorView &values = matrix.values, &scales = matrix.scales;
  const bool same =
      matrix.format == nullptr ? keeps_bytes(values.type, format.dtype) : matrix.format == &format;
  if (!mapping_ || values.file == nullptr || !same) return false;
  // Of matrices that kernels multiply with, see Matrix.
  constexpr uintptr_t kAlignment = 64;
  const auto aligned = [](const std::byte* data) {
    return reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
  };
  return aligned(values.data) && aligned(scales.data);
}

Checkpoint::Files Checkpoint::map_matrix(const StoredMatrix& matrix, const WeightFormat& format) {
  Files files;
  for (const TensorView* view : {&matrix.values, &matrix.scales}) {
    if (!view->present()) continue;
    format_bytes_[&format] += static_cast<int64_t>(view->bytes);
    mapped_bytes_ += view->bytes;
    copies_.push_back({.from = *view, .to = DType::kPacked, .backend = nullptr, .device = nullptr});
    if (copying_) files.push_back(view->file->shared_from_this());
  }
  return files;
}

std::string Checkpoint::weight_formats() const {
  std::vector<const WeightFormat*> formats;
  for (const auto& [format, bytes] : format_bytes_) formats.push_back(format);
  std::ranges::sort(formats, std::greater(), [this](const WeightFormat* format) {
    return std::pair(format_bytes_.at(format), format->name);
  });
  std::vector<std::string> names;
  for (const WeightFormat* format : formats) {
    if (names.empty() || format->packed()) names.emplace_back(format->name);
  }
  return joined(names, ", ");
}

void Checkpoint::Problems::add(const std::string& sentence) {
  if (++count <= kListed) first.push_back(sentence);
}

std::string Checkpoint::Problems::text(std::string_view one, std::string_view many) const {
  const std::string more = count > kListed ? fmt::format("; and {} more", count - kListed) : "";
  return fmt::format("{} {}: {}{}", count, count == 1 ? one : many, joined(first, "; "), more);
}

void Checkpoint::check_all_used() {
  Problems extra;
  for (const auto& file : files_) {
    for (const TensorView& view : file->tensors()) {
      if (lookup(view.name)->used || allowed_extra_.contains(std::string(view.name))) continue;
      extra.add(fmt::format("{}: tensor {}: wanted none of that name, found {}", view.path(),
                            in_quotes(view.name), type_and_shape(view)));
    }
  }
  std::vector<std::string> texts;
  if (missing_.count > 0) texts.push_back(missing_.text("missing tensor", "missing tensors"));
  if (misfit_.count > 0) {
    texts.push_back(
        misfit_.text("tensor of the wrong shape or type", "tensors of the wrong shape or type"));
  }
  if (extra.count > 0) {
    texts.push_back(
        extra.text("tensor that the model does not have", "tensors that the model does not have"));
  }
  if (texts.empty()) return;
  throw std::runtime_error(
      fmt::format("{}: the weights do not fit the config: {}", where_, joined(texts, "; ")));
}

}  // namespace recurve
