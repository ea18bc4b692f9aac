#pragma once
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace recurve {

// The names of a store's files: see StateStore.
inline constexpr std::string_view kJournalFile = "journal-", kSegmentFile = "segment-";
inline constexpr std::string_view kJournalCopy = "journal-copy-";
inline constexpr std::string_view kStateFile = "state-";
inline constexpr std::string_view kIncomplete = ".new", kSetAside = "set-aside-";

inline std::string file_name(std::string_view kind, uint64_t number) {
  return fmt::format("{}{}", kind, number);
}

// The name of a file without the marks of files that are set aside or incomplete.
inline std::string_view final_name(std::string_view name) {
  if (name.starts_with(kSetAside)) name.remove_prefix(kSetAside.size());
  if (name.ends_with(kIncomplete)) name.remove_suffix(kIncomplete.size());
  return name;
}

// The number of a file of that kind; 0: another file. Numbers in use are far from the largest.
inline uint64_t number_of(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return 0;
  name.remove_prefix(kind.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && number <= INT64_MAX ? number : 0;
}

}  // namespace recurve
