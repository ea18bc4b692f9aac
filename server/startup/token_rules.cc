#include "server/startup/token_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/observe/log.h"
#include "server/text/json/json_fields.h"

namespace recurve {
namespace {

constexpr size_t kMaxListed = 8;  // end ids in the start-up table

bool is_text(int32_t id, const Tokenizer& tokenizer) {
  return tokenizer.reads_text() && !tokenizer.is_special(id);
}

void log_ignored(const char* key, int32_t id, const std::string& file, const Tokenizer& tokenizer,
                 const char* reason) {
  log_event(LogLevel::kWarning, "config_token_ignored",
            {{"key", key},
             {"id", id},
             {"file", file},
             {"token", tokenizer.token_bytes(id)},
             {"reason", reason}});
}

std::optional<int32_t> checked_bos(const ModelInfo& model, const Tokenizer& tokenizer) {
  if (!model.bos) return std::nullopt;
  const bool known = *model.bos < tokenizer.size();
  if (known && !is_text(*model.bos, tokenizer)) return model.bos;
  log_ignored("bos_token_id", *model.bos, "config.json", tokenizer,
              known ? "not a control token of the tokenizer" : "not an id of the tokenizer");
  return std::nullopt;
}

// The end ids, each once, with the files that define it.
class EndIds {
 public:
  explicit EndIds(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(int32_t id, const std::string& file) {
    if (id < 0 || id >= tokenizer_.size()) {
      return log_ignored("eos_token_id", id, file, tokenizer_, "not an id of the tokenizer");
    }
    const auto found = std::ranges::find(ids_, id);
    if (found == ids_.end()) {
      ids_.push_back(id);
      files_.push_back(file);
      return;
    }
    std::string& files = files_[static_cast<size_t>(found - ids_.begin())];
    if (files != file && !files.ends_with(", " + file)) files += ", " + file;
  }

  bool empty() const { return ids_.empty(); }
  bool has(int32_t id) const { return std::ranges::find(ids_, id) != ids_.end(); }

  // Control tokens first. Ids that are ordinary text are logged.
  void write(TokenRules& rules) const {
    for (const bool text : {false, true}) {
      for (size_t i = 0; i < ids_.size(); ++i) {
        if (is_text(ids_[i], tokenizer_) != text) continue;
        rules.eos.push_back(ids_[i]);
        rules.eos_files.push_back(files_[i]);
        if (!text) continue;
        log_event(
            LogLevel::kWarning, "end_token_is_text",
            {{"id", ids_[i]},
             {"files", files_[i]},
             {"token", tokenizer_.token_bytes(ids_[i])},
             {"reason", "answers end at this text, because these files list it as an end token"}});
      }
    }
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::vector<std::string> files_;  // [id]
};

void add_ids_of_model(const ModelInfo& model, const Tokenizer& tokenizer, EndIds& ends) {
  for (const EndId& end : model.eos) {
    if (end.is_default && tokenizer.eos_id() && is_text(end.id, tokenizer)) {
      log_ignored("eos_token_id", end.id, end.file, tokenizer,
                  "the default of the config class, and not a control token of the tokenizer");
      continue;
    }
    ends.add(end.id, end.file);
  }
}

}  // namespace

TokenFiles token_files(const ModelInfo& model, const std::filesystem::path& tokenizer_dir) {
  TokenFiles files = read_token_files(tokenizer_dir);
  for (const EndId& end : model.eos) {
    files.control.push_back({.name = {}, .id = end.id, .file = end.file, .key = "eos_token_id"});
  }
  return files;
}

TokenRules resolve_token_rules(const ModelInfo& model, const TokenFiles& files,
                               const Tokenizer& tokenizer) {
  std::optional<int32_t> bos = checked_bos(model, tokenizer);
  if (!bos) bos = tokenizer.bos_id();
  EndIds ends(tokenizer);
  add_ids_of_model(model, tokenizer, ends);
  for (const NamedToken& end : files.ends) {
    if (const auto id = tokenizer.id_of(end.name)) ends.add(*id, end.file);
  }
  if (const auto id = tokenizer.eos_id(); id && !ends.has(*id)) ends.add(*id, "the tokenizer");
  if (ends.empty() && bos) ends.add(*bos, "the tokenizer's BOS");
  TokenRules rules;
  ends.write(rules);
  rules.force_bos = model.force_bos && bos.has_value();
  if (rules.force_bos) rules.bos = bos;
  return rules;
}

std::string ends_line(const TokenRules& rules, const Tokenizer& tokenizer) {
  std::string line;
  for (size_t i = 0; i < std::min(rules.eos.size(), kMaxListed); ++i) {
    const int32_t id = rules.eos[i];
    if (!line.empty()) line += ", ";
    line += fmt::format("{}", id);
    if (is_text(id, tokenizer)) line += " " + quote(tokenizer.token_bytes(id));
    line += fmt::format(" ({})", rules.eos_files[i]);
  }
  if (rules.eos.size() > kMaxListed)
    line += fmt::format(" and {} more", rules.eos.size() - kMaxListed);
  return line.empty() ? "none: answers end at max_tokens or a stop string" : line;
}

}  // namespace recurve
