#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "server/storage/state_store.h"

namespace recurve {

// What the states of sessions in a folder may be used with. The folder has it as a record "model
// ID", whose text is JSON: {"name", "fingerprint", "weights", "chunk"}; sessions' records name the
// ID.
struct StoredModel {
  std::string name;  // as the server that wrote them called it; empty: not known
  std::string fingerprint, weights;
  int32_t chunk = 0;
  std::string id;  // 16 hexadecimal digits, of all that must be the same, the arrays included

  // header: with the layout of the states
  static StoredModel of(const StateHeader& header, std::string name);
  // Empty if the record is none of a model.
  static std::optional<StoredModel> from(const StateStore::Record& record);

  std::string record_key() const;
  std::string record_text() const;
  // "xlstm-books" (0123abcd, bf16)
  std::string description() const;
};

// Why states of `theirs` are of no use to a server of `ours`: a part of a sentence.
std::string difference(const StoredModel& theirs, const StoredModel& ours);

}  // namespace recurve
