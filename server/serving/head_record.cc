#include "server/serving/head_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace recurve {
namespace {

using nlohmann::json;

// The numbers of blobs that the record has.
template <typename Record, typename Visit>
void for_each_blob(Record& record, const Visit& visit) {
  visit(record.state);
  visit(record.answer);
  for (auto& [name, mark] : record.marks) visit(mark.state);
  for (auto& group : record.groups) visit(group.blob);
}

uint64_t number_of(const json& text, int base) {
  const auto& digits = text.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw BadHeadRecord(fmt::format("\"{}\" is no number", digits));
  }
  return value;
}

void parse_groups(const json& all, HeadRecord* record) {
  record->group = all.at("group");
  const json& groups = all.at("groups");
  if (groups.size() > kMostGroups) throw BadHeadRecord("it has too many page groups");
  for (const json& group : groups) {
    record->groups.push_back(
        {.blob = group.at(0),
         .before = group.at(1),
         .end = group.at(2),
         .level = group.at(3),
         .ref = {.id = number_of(group.at(4), 10), .checksum = number_of(group.at(5), 16)}});
  }
}

HeadRecord parse_record(const SessionHead& head) {
  const json all = json::parse(head.record);
  const int last = static_cast<int>(head.blobs.size()) - 1;
  HeadRecord record{.position = all.at("position"), .parent = all.value("parent", "")};
  if (head.form == HeadForm::k1) {
    record.state = record.position > 0 ? 0 : -1;
    record.answer = all.value("answer_is_blob", false) ? last : -1;
    return record;
  }
  record.state = all.at("state");
  record.answer = all.at("answer");
  record.marked = all.at("marked");
  for (const auto& [name, mark] : all.at("marks").items()) {
    record.marks[name] = {.position = mark.at(0), .state = mark.at(1)};
    if (head.form >= HeadForm::k3) record.marks[name].group = mark.at(2);
    if (head.form >= HeadForm::k4) record.marks[name].tokens_from = mark.at(3);
  }
  if (head.form >= HeadForm::k3) parse_groups(all, &record);
  if (head.form >= HeadForm::k4) {
    record.rewind_tokens = all.at("rewind_tokens");
    record.tokens_from = all.at("tokens_from");
  }
  return record;
}

bool is_possible(const SessionHead& head, const HeadRecord& record) {
  const int blobs = static_cast<int>(head.blobs.size());
  bool possible = record.marked < head.commit && record.marks.size() <= kMostMarks;
  for_each_blob(record, [&](int blob) { possible = possible && blob >= -1 && blob < blobs; });
  const int groups = static_cast<int>(record.groups.size());
  const auto fits = [groups](const HeadRecord::Mark& at) {
    const bool has_group = at.group >= 0 && at.state >= 0;
    return (at.position > 0 ? at.state >= 0 : at.position == 0) && at.group < groups &&
           (at.group == -1 || has_group) && at.tokens_from >= 0 && at.tokens_from <= at.position;
  };
  possible = possible && fits(record.at()) && record.rewind_tokens >= 0 &&
             record.rewind_tokens <= kMostRewindTokens;
  for (const auto& [name, mark] : record.marks) possible = possible && fits(mark);
  for (int g = 0; g < groups && possible; ++g) {
    const HeadRecord::Group& group = record.groups[static_cast<size_t>(g)];
    possible = group.blob >= 0 && group.before >= -1 && group.before < g && group.level >= 0 &&
               group.ref.id > 0;
    if (!possible) break;
    const int64_t begin =
        group.before < 0 ? 0 : record.groups[static_cast<size_t>(group.before)].end;
    possible = group.end > begin;
  }
  return possible;
}

// Those that no state has go.
void drop_unused_groups(HeadRecord* record) {
  std::vector<int> places(record->groups.size(), -1);
  const auto use = [&](int group) {
    for (; group >= 0; group = record->groups[static_cast<size_t>(group)].before) {
      places[static_cast<size_t>(group)] = 0;
    }
  };
  use(record->group);
  for (const auto& [name, mark] : record->marks) use(mark.group);
  std::vector<HeadRecord::Group> used;
  const auto moved = [&](int group) { return group < 0 ? -1 : places[static_cast<size_t>(group)]; };
  for (size_t g = 0; g < places.size(); ++g) {
    if (places[g] < 0) continue;
    places[g] = static_cast<int>(used.size());
    used.push_back(record->groups[g]);
    used.back().before = moved(used.back().before);
  }
  record->groups = std::move(used);
  record->group = moved(record->group);
  for (auto& [name, mark] : record->marks) mark.group = moved(mark.group);
}

}  // namespace

std::string to_text(const HeadRecord& record) {
  json all{{"position", record.position}, {"answer_is_blob", record.answer >= 0}};
  if (!record.parent.empty()) all["parent"] = record.parent;
  if (record.form() == HeadForm::k1) return all.dump();
  all["state"] = record.state;
  all["answer"] = record.answer;
  all["marked"] = record.marked;
  json& marks = all["marks"] = json::object();
  for (const auto& [name, mark] : record.marks) marks[name] = {mark.position, mark.state};
  if (record.form() == HeadForm::k2) return all.dump();
  for (const auto& [name, mark] : record.marks) marks[name].push_back(mark.group);
  all["group"] = record.group;
  json& groups = all["groups"] = json::array();
  for (const HeadRecord::Group& group : record.groups) {
    groups.push_back({group.blob, group.before, group.end, group.level,
                      std::to_string(group.ref.id), fmt::format("{:016x}", group.ref.checksum)});
  }
  if (record.form() == HeadForm::k3) return all.dump();
  for (const auto& [name, mark] : record.marks) marks[name].push_back(mark.tokens_from);
  all["rewind_tokens"] = record.rewind_tokens;
  all["tokens_from"] = record.tokens_from;
  return all.dump();
}

HeadRecord record_of(const SessionHead& head) {
  try {
    HeadRecord record = parse_record(head);
    if (is_possible(head, record)) return record;
  } catch (const json::exception&) {
  } catch (const BadHeadRecord&) {
  }
  throw BadHeadRecord("the head of session \"" + head.session +
                      "\" in the store has a record that no server writes");
}

std::vector<RemoteBlob> used_blobs(const SessionHead& head, HeadRecord* record) {
  drop_unused_groups(record);
  std::map<int, int> places;
  for_each_blob(*record, [&](int blob) {
    if (blob >= 0) places.emplace(blob, 0);
  });
  std::vector<RemoteBlob> used;
  for (auto& [blob, place] : places) {
    place = static_cast<int>(used.size());
    used.push_back(head.blobs[static_cast<size_t>(blob)]);
  }
  for_each_blob(*record, [&](int& blob) {
    if (blob >= 0) blob = places.at(blob);
  });
  return used;
}

std::vector<HeadRecord::Group> chain_of(const HeadRecord& record, int group) {
  std::vector<HeadRecord::Group> chain;
  while (group >= 0) {
    chain.push_back(record.groups[static_cast<size_t>(group)]);
    group = chain.back().before;
  }
  std::ranges::reverse(chain);
  return chain;
}

uint64_t bytes_of(const SessionHead& head, const HeadRecord& record, const HeadRecord::Mark& at) {
  const auto bytes = [&](int blob) { return head.blobs[static_cast<size_t>(blob)].bytes; };
  uint64_t sum = at.state < 0 ? 0 : bytes(at.state);
  for (const HeadRecord::Group& group : chain_of(record, at.group)) sum += bytes(group.blob);
  return sum;
}

NewPages new_pages(const HeadRecord& record, int group) {
  const std::vector<HeadRecord::Group> chain = chain_of(record, group);
  NewPages pages;
  size_t kept = chain.size();
  const auto of_level = [&] {
    size_t count = 0;
    while (count < kept && chain[kept - 1 - count].level <= pages.level) ++count;
    return count;
  };
  for (size_t count = of_level(); count + 1 >= kGroupsOfALevel; count = of_level()) {
    kept -= count;
    ++pages.level;
  }
  pages.first = kept > 0 ? chain[kept - 1].end : 0;
  pages.before = kept < chain.size() ? chain[kept].before : group;
  return pages;
}

uint64_t epoch_of(const SessionHead& head, const HeadRecord& record) {
  return head.commit - 1 - record.marked;
}

CommitInfo commit_of(const SessionHead& head, int64_t position) {
  return {.owner_epoch = head.epoch, .number = head.commit, .position = position};
}

SessionInfo info_of(const SessionHead& head) {
  const HeadRecord record = record_of(head);
  SessionInfo info{.name = head.session,
                   .parent = record.parent,
                   .position = record.position,
                   .tier = record.state >= 0 ? Tier::kDisk : Tier::kEmpty,
                   .epoch = epoch_of(head, record),
                   .durability = Durability::kRemote,
                   .commit = commit_of(head, record.position),
                   .rewind_tokens = record.rewind_tokens,
                   .tokens_from = record.rewind_tokens > 0 ? record.tokens_from : record.position};
  if (record.state >= 0) {
    info.state_bytes = static_cast<int64_t>(bytes_of(head, record, record.at()));
  }
  for (const auto& [name, mark] : record.marks) info.marks.push_back({name, mark.position});
  return info;
}

}  // namespace recurve
