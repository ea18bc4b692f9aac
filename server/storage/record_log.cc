#include "server/storage/record_log.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

namespace recurve {
namespace {

// The readable part of a journal; nothing if it does not exist.
JournalContents journal_in(FileSystem& files, const std::string& name) {
  std::string bytes;
  try {
    const auto reader = files.open(name);
    bytes.resize(reader->bytes());
    reader->read_what_is_whole(0, std::as_writable_bytes(std::span(bytes)));
  } catch (const std::system_error&) {  // nothing is readable
  }
  return parse_journal(bytes);
}

}  // namespace

RecordLog::Found RecordLog::read(const std::vector<FileSystem::Entry>& files) {
  std::set<uint64_t, std::greater<>> journals;
  for (const auto& file : files) {
    const auto number = [](std::string_view name) {
      return std::max(number_of(name, kJournalFile), number_of(name, kJournalCopy));
    };
    if (number(file.name) > 0) journals.insert(number(file.name));
    number_ = std::max(number_, number(final_name(file.name)));  // numbers are not reused
  }
  Found found{.any = !journals.empty()};
  for (const uint64_t number : journals) {
    found.contents = merged(number, files, &found.damaged);
    if (!found.contents.damaged || !found.contents.entries.empty()) break;  // a journal
  }
  return found;
}

// The groups of a journal and its copy together. The copy, which has the same bytes, is read if the
// journal may lack something.
JournalContents RecordLog::merged(uint64_t number, const std::vector<FileSystem::Entry>& files,
                                  std::set<std::string>* damaged) {
  const std::string name = file_name(kJournalFile, number), copy = file_name(kJournalCopy, number);
  const auto entry = [&](const std::string& of) {
    return std::ranges::find(files, of, &FileSystem::Entry::name);
  };
  const auto bytes_of = [&](const std::string& of) -> uint64_t {
    return entry(of) == files.end() ? 0 : entry(of)->bytes;
  };
  JournalContents found = journal_in(files_.system(), name);
  if (found.damaged && bytes_of(name) > 0) damaged->insert(name);
  const bool whole = !found.damaged && !found.has_tail && !gaps_in(found).any;
  if (entry(copy) == files.end() || (whole && bytes_of(copy) <= bytes_of(name))) return found;
  JournalContents other = journal_in(files_.system(), copy);
  // A power failure may damage any group of the copy that was not synced.
  if (other.damaged && found.groups.empty()) damaged->insert(copy);
  return merge_journals(std::move(found), std::move(other));
}

void RecordLog::begin(uint64_t groups, std::string_view entries) {
  const std::string all = journal_beginning(groups).append(entries);
  journal_.reset();
  files_.remove(file_name(kJournalCopy, number_ + 1), 0);  // left from a failed attempt
  auto writer = write_new(file_name(kJournalFile, number_ + 1), all);
  begin_copy(all);
  files_.sync_names();
  if (bytes_ > 0) {
    files_.remove_later(file_name(kJournalFile, number_), bytes_);
    files_.remove_later(file_name(kJournalCopy, number_), bytes_);
  }
  journal_ = std::move(writer);
  next_group_ = groups;
  ++number_;
  bytes_ = snapshot_bytes_ = all.size();
  files_.add_bytes(all.size());
}

void RecordLog::append(const std::string& entries) {
  std::unique_ptr<FileSystem::Writer> journal = std::move(journal_);
  const std::string group = journal_group(next_group_, entries);
  journal->append(group);
  append_to_copy(group);
  files_.sync(*journal);
  journal_ = std::move(journal);
  ++next_group_;
  bytes_ += group.size();
  files_.add_bytes(group.size());
}

// Without a copy the log continues.
void RecordLog::append_to_copy(const std::string& group) {
  if (copy_ == nullptr) return;
  try {
    copy_->append(group);
    files_.add_bytes(group.size());
  } catch (const std::system_error&) {
    copy_.reset();
  }
}

void RecordLog::begin_copy(const std::string& all) {
  copy_.reset();
  try {
    copy_ = write_new(file_name(kJournalCopy, number_ + 1), all);
    files_.add_bytes(all.size());
  } catch (const std::system_error&) {
  }
}

// The file is complete under its name, or does not exist.
std::unique_ptr<FileSystem::Writer> RecordLog::write_new(const std::string& name,
                                                         const std::string& all) {
  const std::string made = name + std::string(kIncomplete);
  try {
    std::unique_ptr<FileSystem::Writer> writer = files_.system().create(made);
    writer->append(all);
    writer->sync();
    files_.system().rename(made, name);
    return writer;
  } catch (const std::exception&) {
    files_.remove(made, 0);  // frees its space on a full disk
    throw;
  }
}

}  // namespace recurve
