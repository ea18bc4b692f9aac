#include "server/startup/initial_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "model/weights/convert.h"
#include "model/weights/mapped_file.h"
#include "model/weights/safetensors.h"
#include "server/request/session_command.h"
#include "server/session/state_cache.h"
#include "server/session/state_transfer.h"
#include "server/startup/named_error.h"
#include "server/state/state_values.h"

namespace recurve {
namespace {

// What a state of safetensors counts as.
constexpr int64_t kTunedPosition = 1;
constexpr const char* kFlag = "--initial-state";

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool is_exported(const MappedFile& file) { return text_of(file).starts_with(kStateMagic); }

ReadAt reader_of(const MappedFile& file) {
  return [&file](uint64_t offset, std::span<std::byte> to) {
    if (!file.read(file.bytes().data() + offset, to.size(), to.data())) {
      throw std::runtime_error("the file cannot be read");
    }
  };
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The most bytes that a file of such a state may have.
size_t most_file_bytes(const StateLayout& layout, int32_t vocab, int64_t position) {
  return most_written_bytes(layout, vocab, 4096, position) +
         most_token_bytes(vocab, kMostRewindTokens);
}

int64_t position_of(const MappedFile& file, const StateLayout& layout, int32_t vocab) {
  if (!is_exported(file)) {
    const size_t most = layout.bytes() + layout.arrays.size() * 256 + 4096;
    if (file.bytes().size() > most) {
      throw std::runtime_error(fmt::format(
          "the file has {} bytes, and a state of this model at most {}: it is of another model, or "
          "no state",
          file.bytes().size(), most));
    }
    return kTunedPosition;
  }
  const int64_t position = read_state_header(file.bytes().size(), reader_of(file)).position;
  // A state that grows with a position beyond what the file has is refused before memory is taken.
  const size_t least = layout.bytes(std::min(position, layout.most_tokens()));
  if (position > layout.most_tokens() || file.bytes().size() < least) {
    throw std::runtime_error(
        fmt::format("the file has {} bytes, and a state of this model of {} tokens at least {}: it "
                    "is cut off, or of another model",
                    file.bytes().size(), position, least));
  }
  const size_t most = most_file_bytes(layout, vocab, position);
  if (file.bytes().size() > most) {
    throw std::runtime_error(fmt::format(
        "the file has {} bytes, and a state of this model of {} tokens at most {}: it is of "
        "another model",
        file.bytes().size(), position, most));
  }
  return position;
}

std::string tensor_name(const StateArray& array) {
  return fmt::format("layers.{}.{}", array.layer, array.name);
}

void check_tensors(const SafetensorsFile& file, const StateLayout& layout) {
  size_t known = 0;
  for (const StateArray& array : layout.arrays) {
    const TensorView* const tensor = file.find(tensor_name(array));
    if (tensor == nullptr) continue;
    ++known;
    const std::span<const int64_t> shape(tensor->shape.begin(), tensor->shape.end());
    if (!std::ranges::equal(shape, array.shape)) {
      throw std::runtime_error(fmt::format("{} has the shape {}, and in this model {}",
                                           tensor->name, shape_text(shape),
                                           shape_text(array.shape)));
    }
    if (tensor->type != StoredType::kF32 && tensor->type != StoredType::kBF16 &&
        tensor->type != StoredType::kF16) {
      throw std::runtime_error(fmt::format("{} must be F32, BF16 or F16", tensor->name));
    }
  }
  if (known == file.tensors().size() && known > 0) return;
  const auto unknown = std::ranges::find_if(file.tensors(), [&](const TensorView& tensor) {
    return std::ranges::none_of(
        layout.arrays, [&](const StateArray& array) { return tensor_name(array) == tensor.name; });
  });
  throw std::runtime_error(fmt::format(
      "{} is no array of this model's state, whose first is {}: convert a tuned state with "
      "`python -m weights_tools convert`",
      unknown == file.tensors().end() ? "nothing" : unknown->name,
      tensor_name(layout.arrays.front())));
}

std::shared_ptr<const ImportedState> read_tuned(const std::string& path,
                                                const StateHeader& identity) {
  const StateLayout& layout = identity.layout;
  const bool counts = std::ranges::any_of(
      layout.arrays, [](const StateArray& one) { return one.values == StateValues::kPosition; });
  if (layout.grows() || counts) {
    throw std::runtime_error(
        "states of this model count their tokens, so none can be read from safetensors: give an "
        "exported session");
  }
  const auto file = std::make_shared<SafetensorsFile>(path);
  check_tensors(*file, layout);
  const NewImage made = make_image(layout, kTunedPosition);
  for (const std::span<std::byte> room : made.rooms) std::memset(room.data(), 0, room.size());
  const auto arrays = spans_of_arrays(layout, made.rooms);
  for (size_t a = 0; a < arrays.size(); ++a) {
    const TensorView* const tensor = file->find(tensor_name(layout.arrays[a]));
    if (tensor != nullptr) convert(*tensor, layout.arrays[a].dtype, arrays[a].data());
  }
  check_values({.position = kTunedPosition}, identity, made.rooms);
  const auto state = std::make_shared<ImportedState>();
  state->at.position = kTunedPosition;
  state->at.image = made.image;
  return state;
}

}  // namespace

size_t plan_initial_states(const std::vector<NamedPath>& files, const StateLayout& layout,
                           int32_t vocab) {
  size_t bytes = 0;
  for (const NamedPath& file : files) {
    bytes += with_name(kFlag, file, [&] {
      const MappedFile mapped(file.path);
      return StateCache::bytes_each(layout, position_of(mapped, layout, vocab));
    });
  }
  return bytes;
}

std::vector<InitialStatePtr> load_initial_states(const std::vector<NamedPath>& files,
                                                 const StateHeader& identity) {
  std::vector<InitialStatePtr> states;
  for (const NamedPath& file : files) {
    states.push_back(with_name(kFlag, file, [&] {
      const MappedFile mapped(file.path);
      position_of(mapped, identity.layout, identity.vocab);
      mapped.check_still_whole();
      InitialState state;
      state.state = is_exported(mapped) ? state_reader(identity)(text_of(mapped))
                                        : read_tuned(file.path, identity);
      state.id = {.name = file.name,
                  .digest = fmt::format("{:016x}{:016x}", checksum_of(text_of(mapped)),
                                        mapped.bytes().size())};
      const Snapshot& at = snapshot_of(state);
      state.position = at.position;
      state.bytes = static_cast<int64_t>(identity.layout.bytes(at.position));
      return std::make_shared<const InitialState>(std::move(state));
    }));
  }
  return states;
}

}  // namespace recurve
