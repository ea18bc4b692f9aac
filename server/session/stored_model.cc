#include "server/session/stored_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace recurve {
namespace {

using nlohmann::json;

constexpr std::string_view kModel = "model ";

}  // namespace

StoredModel StoredModel::of(const StateHeader& header, std::string name) {
  return {.name = std::move(name),
          .fingerprint = header.model,
          .weights = header.weights,
          .chunk = header.chunk,
          .id = fmt::format("{:016x}", checksum_of(identity_text(header)))};
}

std::optional<StoredModel> StoredModel::from(const StateStore::Record& record) {
  if (!record.key.starts_with(kModel)) return std::nullopt;
  StoredModel model{.id = record.key.substr(kModel.size())};
  const json text = json::parse(record.text, nullptr, false);
  if (!text.is_object()) return model;
  try {
    model.name = text.value("name", "");
    model.fingerprint = text.value("fingerprint", "");
    model.weights = text.value("weights", "");
    model.chunk = text.value("chunk", 0);
  } catch (const json::exception&) {  // a later version's: its ID says enough
  }
  return model;
}

std::string StoredModel::record_key() const { return std::string(kModel) + id; }

std::string StoredModel::record_text() const {
  return json{{"name", name}, {"fingerprint", fingerprint}, {"weights", weights}, {"chunk", chunk}}
      .dump();
}

std::string StoredModel::description() const {
  const std::string called = name.empty() ? "" : fmt::format("\"{}\" ", name);
  return fmt::format("{}({}, {})", called, fingerprint.substr(0, 8), weights);
}

std::string difference(const StoredModel& theirs, const StoredModel& ours) {
  const bool same = theirs.fingerprint == ours.fingerprint && theirs.weights == ours.weights;
  if (same && theirs.chunk != ours.chunk) {
    return fmt::format(
        "its prompts were computed in chunks of {} tokens, this server's in chunks of {}",
        theirs.chunk, ours.chunk);
  }
  if (same) return "its states have other types than this server's: see --state";
  return fmt::format("its model is {}, this server's {}", theirs.description(), ours.description());
}

}  // namespace recurve
