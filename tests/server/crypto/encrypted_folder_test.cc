#include "server/crypto/encrypted_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "server/identity/hex.h"
#include "server/identity/state_key_store.h"
#include "server/identity/state_keys.h"
#include "tests/support/engine/recording_folder.h"
#include "tests/support/engine/store_workload.h"
#include "tests/support/temp_dir.h"

namespace recurve::encrypted_folder_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

SecretKey key(uint8_t number) {
  SecretKey made;
  made.fill(number);
  return made;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> all_of(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    found[entry.path().filename()] = bytes_of(entry.path());
  }
  return found;
}

std::string read(const FileSystem::Reader& reader, uint64_t offset, size_t size) {
  std::string text(size, '\0');
  reader.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

class EncryptedFolder : public ::testing::Test {
 protected:
  std::unique_ptr<FileSystem> open(const std::vector<SecretKey>& keys) {
    std::ofstream(keys_) << to_text(keys);
    return encrypt_folder(open_folder(folder_.path()), keys_);
  }
  std::string written(FileSystem& folder, const std::string& name, size_t bytes) {
    std::string all(bytes, '\0');
    for (char& c : all) c = static_cast<char>(random_());
    const auto writer = folder.create(name);
    for (size_t at = 0; at < bytes;) {
      const size_t part = std::min<size_t>(bytes - at, 1 + random_() % 150'000);
      writer->append(std::string_view(all).substr(at, part));
      at += part;
    }
    writer->sync();
    return all;
  }

  // The files of tenants' keys.
  std::vector<std::string> key_files() {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : all_of(folder_.path())) {
      if (!tenant_key_of_file(name).empty()) names.push_back(name);
    }
    return names;
  }
  // A tenant's state in a separate segment.
  static void append_of(FileSystem& folder, const std::string& name, const std::string& tenant,
                        const std::string& text) {
    const std::string_view half = std::string_view(text).substr(0, text.size() / 2);
    folder.create(name)->append_of(
        tenant, std::array<std::string_view, 2>{half, std::string_view(text).substr(half.size())});
  }

  TempDir folder_, other_;
  const std::string keys_ = other_ / "state.keys";
  std::mt19937 random_{3};
};

TEST_F(EncryptedFolder, ReadsWhatWasWritten) {
  std::string text;
  {
    const auto folder = open({key(1)});
    text = written(*folder, "state-1", 1'000'000);
  }
  const auto folder = open({key(1)});
  std::map<std::string, uint64_t> files;
  for (const auto& entry : folder->list()) files[entry.name] = entry.bytes;
  EXPECT_EQ(files, (std::map<std::string, uint64_t>{{"lock", 0}, {"state-1", text.size()}}));
  const auto reader = folder->open("state-1");
  EXPECT_EQ(read(*reader, 0, text.size()), text);
  for (int i = 0; i < 200; ++i) {
    const size_t at = random_() % text.size(), size = random_() % (text.size() - at);
    ASSERT_EQ(read(*reader, at, std::min<size_t>(size, 200'000)),
              text.substr(at, std::min<size_t>(size, 200'000)));
  }
}

TEST_F(EncryptedFolder, ReadsAGrowingFile) {
  const auto folder = open({key(1)});
  const auto writer = folder->create("segment-1");
  const auto reader = folder->open("segment-1");
  EXPECT_EQ(reader->bytes(), 0U);
  writer->append("one");
  EXPECT_EQ(read(*folder->open("segment-1"), 0, 3), "one");
  const auto early = folder->open("segment-1");
  writer->append("two");
  EXPECT_EQ(read(*early, 1, 4), "netw");
  EXPECT_THROW(read(*early, 1, 6), std::system_error);
}

TEST_F(EncryptedFolder, HasNoPlainText) {
  const auto folder = open({key(1)});
  for (const char* name : {"state-1", "state-2"}) {
    const auto writer = folder->create(name);
    for (int i = 0; i < 2; ++i) writer->append("Call me Ishmael. Call me Ishmael.");
  }
  const auto files = all_of(folder_.path());
  for (const auto& [name, bytes] : files) {
    EXPECT_EQ(bytes.find("Ishmael"), std::string::npos) << name;
    const std::string raw(32, '\1');
    EXPECT_EQ(bytes.find(raw), std::string::npos) << name;
  }
  // Equal texts in one file or in two differ when encrypted.
  const std::string one = files.at("state-1"), two = files.at("state-2");
  EXPECT_NE(one.substr(24), two.substr(24));
  EXPECT_NE(one.substr(28, 33), one.substr(28 + 33 + 16 + 4, 33));
}

TEST_F(EncryptedFolder, DetectsEachChangedByte) {
  std::string text;
  {
    const auto folder = open({key(1)});
    text = written(*folder, "state-1", 500);
  }
  const std::string whole = bytes_of(folder_ / "state-1");
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    std::ofstream(folder_ / "state-1", std::ios::binary) << changed;
    EXPECT_THROW(read(*open({key(1)})->open("state-1"), 0, 500), std::system_error)
        << "byte " << at;
  }
}

TEST_F(EncryptedFolder, EndsBeforeAnIncompletePiece) {
  {
    const auto folder = open({key(1)});
    const auto writer = folder->create("journal-1");
    writer->append("whole");
    writer->append("cut off");
  }
  const std::string whole = bytes_of(folder_ / "journal-1");
  for (size_t left = 0; left < whole.size(); ++left) {
    fs::resize_file(folder_ / "journal-1", left);
    const auto folder = open({key(1)});
    const auto reader = folder->open("journal-1");
    const size_t first = 24 + 4 + 5 + 16;
    ASSERT_EQ(reader->bytes(), left < first ? 0U : 5U) << left;
    if (left >= first) {
      ASSERT_EQ(read(*reader, 0, 5), "whole");
    }
    std::ofstream(folder_ / "journal-1", std::ios::binary) << whole;
  }
}

TEST_F(EncryptedFolder, ReplacesAKeyWithoutChangingAState) {
  std::string text;
  {
    const auto folder = open({key(1)});
    text = written(*folder, "state-1", 100'000);
    append_of(*folder, "state-2", "alice", "of Alice");
  }
  const auto before = all_of(folder_.path());
  const std::string wrapped = key_files().at(0);
  open({key(2), key(1)});
  const auto after = all_of(folder_.path());
  for (const auto& [name, bytes] : before) {
    const bool is_key = name == "state-key" || name == wrapped;
    EXPECT_EQ(after.at(name) != bytes, is_key) << name;
  }
  EXPECT_EQ(read(*open({key(2)})->open("state-1"), 0, text.size()), text);
  EXPECT_EQ(read(*open({key(2)})->open("state-2"), 0, 8), "of Alice");
  EXPECT_THAT(error_of([&] { open({key(1)}); }), HasSubstr("--state-keys"));
}

TEST_F(EncryptedFolder, SealsEachTenantsDataWithItsKey) {
  const std::string text(200'000, 'x');
  {
    const auto folder = open({key(1)});
    const auto writer = folder->create("segment-1");
    writer->append("folder's");
    writer->append_of("alice", std::array<std::string_view, 2>{"of Alice", text});
    writer->append_of("benjamin", std::array<std::string_view, 1>{"of Bob"});
    writer->append_of("alice", std::array<std::string_view, 1>{"again"});
    writer->append("folder's");
  }
  EXPECT_EQ(key_files().size(), 2u);
  const std::string all = "folder'sof Alice" + text + "of Bobagainfolder's";
  const auto folder = open({key(1)});
  const auto reader = folder->open("segment-1");
  ASSERT_EQ(reader->bytes(), all.size());
  EXPECT_EQ(read(*reader, 0, all.size()), all);
  for (int i = 0; i < 200; ++i) {
    const size_t at = random_() % all.size();
    ASSERT_EQ(read(*reader, at, std::min<size_t>(20, all.size() - at)), all.substr(at, 20));
  }
  // Names long enough not to occur in sealed bytes by chance.
  for (const auto& [name, bytes] : all_of(folder_.path())) {
    EXPECT_EQ(bytes.find("alice"), std::string::npos) << name;
    EXPECT_EQ(bytes.find("benjamin"), std::string::npos) << name;
  }
}

TEST_F(EncryptedFolder, ReadsATenantsDataOnlyWithItsKey) {
  const auto folder = open({key(1)});
  append_of(*folder, "state-1", "alice", "of Alice");
  const std::string alice = key_files().at(0);
  append_of(*folder, "state-2", "bob", "of Bob");
  const auto early = folder->open("state-1");
  EXPECT_EQ(read(*early, 0, 8), "of Alice");
  fs::rename(folder_ / alice, other_ / alice);
  const auto late = folder->open("state-1");
  for (const auto* reader : {early.get(), late.get()}) {
    EXPECT_EQ(reader->bytes(), 8u);
    EXPECT_THAT(error_of([&] { read(*reader, 0, 8); }),
                AllOf(HasSubstr("alice"), HasSubstr(alice)));
    EXPECT_THROW(read(*reader, 0, 8), KeyMissing);
  }
  EXPECT_EQ(read(*folder->open("state-2"), 0, 6), "of Bob");
  // Data written in the meantime has a new key, and both can be read in the end.
  append_of(*folder, "state-3", "alice", "anew");
  EXPECT_EQ(read(*folder->open("state-3"), 0, 4), "anew");
  EXPECT_THROW(read(*folder->open("state-1"), 0, 8), KeyMissing);
  fs::rename(other_ / alice, folder_ / alice);
  EXPECT_EQ(read(*early, 0, 8), "of Alice");
  EXPECT_EQ(read(*folder->open("state-3"), 0, 4), "anew");
}

TEST_F(EncryptedFolder, CopiesUnreadableDataToAnotherFile) {
  const std::string text(150'000, 'y');
  const auto folder = open({key(1)});
  {
    const auto writer = folder->create("segment-1");
    writer->append("folder's");
    writer->append_of("alice", std::array<std::string_view, 2>{"of Alice", text});
  }
  const auto from = folder->open("segment-1");
  const auto writer = folder->create("segment-2");
  // A whole part, or none.
  for (const auto& [offset, bytes] : {std::pair{9u, 100u}, {0u, 20u}, {70'000u, 80'008u}}) {
    EXPECT_THROW(writer->append_from(*from, offset, bytes), std::system_error);
  }
  const std::string alice = key_files().at(0);
  fs::rename(folder_ / alice, other_ / alice);
  writer->append_from(*from, 8, 8 + text.size());
  writer->append_from(*from, 0, 8);

  const auto carried = folder->open("segment-2");
  EXPECT_EQ(carried->bytes(), 16 + text.size());
  EXPECT_EQ(read(*carried, 8 + text.size(), 8), "folder's");
  EXPECT_THROW(read(*carried, 0, 8), KeyMissing);
  fs::rename(other_ / alice, folder_ / alice);
  EXPECT_EQ(read(*carried, 0, 8 + text.size()), "of Alice" + text);
}

TEST_F(EncryptedFolder, NamesAModifiedOrExchangedKey) {
  {
    const auto folder = open({key(1)});
    append_of(*folder, "state-1", "alice", "of Alice");
    append_of(*folder, "state-2", "bob", "of Bob");
  }
  const std::string name = key_files().at(0), other = key_files().at(1);
  const std::string whole = bytes_of(folder_ / name), others = bytes_of(folder_ / other);
  const auto error_with = [&](const std::string& wrapped) {
    std::ofstream(folder_ / name, std::ios::binary) << wrapped;
    const auto folder = open({key(1)});
    std::string all;
    for (const char* state : {"state-1", "state-2"}) {
      try {
        read(*folder->open(state), 0, 6);
      } catch (const KeyMissing& error) {
        EXPECT_EQ(all, "") << "the other key works";
        all = error.what();
      }
    }
    return all;
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    ASSERT_THAT(error_with(changed), HasSubstr(name)) << "byte " << at;
    ASSERT_THAT(error_with(whole.substr(0, at)), HasSubstr(name)) << "cut off at " << at;
  }
  EXPECT_THAT(error_with(others), AllOf(HasSubstr(name), HasSubstr(other), HasSubstr("a copy of")));
  EXPECT_EQ(error_with(whole), "");
}

TEST_F(EncryptedFolder, AllowsReplacingAndRemovingKeysWhileInUse) {
  make_state_keys(keys_);
  const std::vector<SecretKey> first = read_state_keys(keys_);
  EXPECT_THAT(error_of([&] { make_state_keys(keys_); }), HasSubstr("rotate"));
  {
    const auto folder = encrypt_folder(open_folder(folder_.path()), keys_);
    append_of(*folder, "state-1", "alice", "of Alice");
    const std::string state = bytes_of(folder_ / "state-1");
    EXPECT_EQ(rotate_state_keys(keys_, {folder_.path()}, false), 2u);
    EXPECT_EQ(read_state_keys(keys_).size(), 2u);
    EXPECT_EQ(rotate_state_keys(keys_, {folder_.path()}, true), 2u);
    ASSERT_EQ(read_state_keys(keys_).size(), 1u);
    EXPECT_NE(read_state_keys(keys_), first);
    EXPECT_EQ(bytes_of(folder_ / "state-1"), state);
    EXPECT_EQ(read(*folder->open("state-1"), 0, 8), "of Alice");
    append_of(*folder, "state-2", "bob", "of Bob");  // wrapped with the key that is there now

    std::map<std::string, int> listed;
    for (const ListedKey& one : list_state_keys(keys_, folder_.path())) {
      EXPECT_EQ(one.problem, "");
      ++listed[one.tenant];
    }
    EXPECT_EQ(listed, (std::map<std::string, int>{{"", 1}, {"alice", 1}, {"bob", 1}}));
    EXPECT_EQ(drop_tenant_keys(keys_, folder_.path(), "alice").size(), 1u);
    EXPECT_THAT(error_of([&] { drop_tenant_keys(keys_, folder_.path(), "alice"); }),
                HasSubstr("alice"));
    EXPECT_THROW(read(*folder->open("state-1"), 0, 8), KeyMissing);
    EXPECT_EQ(read(*folder->open("state-2"), 0, 6), "of Bob");
  }
  EXPECT_EQ(read(*open(read_state_keys(keys_))->open("state-2"), 0, 6), "of Bob");
  EXPECT_THAT(error_of([&] { open(first); }), HasSubstr("--state-keys"));
}

TEST_F(EncryptedFolder, ReplacesAllKeysOrNone) {
  {
    const auto folder = open({key(1)});
    append_of(*folder, "state-1", "alice", "of Alice");
  }
  const std::string name = key_files().at(0);
  std::ofstream(folder_ / name, std::ios::binary | std::ios::app) << "more";
  const auto before = all_of(folder_.path());
  EXPECT_THAT(error_of([&] { rotate_state_keys(keys_, {folder_.path()}, true); }), HasSubstr(name));
  EXPECT_EQ(all_of(folder_.path()), before);
  EXPECT_THAT(read_state_keys(keys_), ::testing::ElementsAre(key(1)));
}

// Written by a server with one key per folder, with the operator's key(1).
constexpr std::string_view kStateKeyOfBefore =
    "5243525643525054000102030405060708090a0b0c0d0e0f6b4d78f7988e727eb460d4c0d3e8eae2da148097"
    "d9d78683eced4dc85c2a8230c1ee80e022828d7dd69c524799d09956";
constexpr std::string_view kSegmentOfBefore =
    "524352564352505432333435363738393a3b3c3d3e3f404110000000785c0eaf210341288ed9d517a5bfa95a"
    "8d3a5102b9cfa81d0369da77b889c1230a000000c6ef022a4dab92f98e7d5f5b1a55142fa881ef877cd0497c"
    "0bd3";

TEST_F(EncryptedFolder, ReadsAFolderOfThePreviousVersion) {
  std::ofstream(folder_ / "state-key", std::ios::binary) << from_hex(kStateKeyOfBefore);
  std::ofstream(folder_ / "segment-1", std::ios::binary) << from_hex(kSegmentOfBefore);
  const auto folder = open({key(1)});
  const auto reader = folder->open("segment-1");
  ASSERT_EQ(reader->bytes(), 26u);
  EXPECT_EQ(read(*reader, 0, 26), "Call me Ishmael.Once upon ");
  // It is copied to other files under the folder's key; tenants' data is added.
  const auto writer = folder->create("segment-2");
  writer->append_from(*reader, 16, 10);
  writer->append_of("alice", std::array<std::string_view, 1>{"a time"});
  EXPECT_EQ(read(*folder->open("segment-2"), 0, 16), "Once upon a time");
}

// Power fails after each call: acknowledged data can be read with the keys present; a missing
// tenant's key hides only that tenant's states, and restoring it makes them readable.
TEST_F(EncryptedFolder, HasTheKeysOfAcknowledgedDataAfterAnyPowerFailure) {
  using namespace ::recurve::testing;
  std::ofstream(keys_) << to_text(std::vector{key(1)});
  const auto open_store = [&](std::shared_ptr<RecordingDisk> disk) {
    return std::make_unique<StateStore>(
        encrypt_folder(std::make_unique<RecordingFolder>(std::move(disk)), keys_), options());
  };
  const auto whole = std::make_shared<RecordingDisk>();
  {
    const auto store = open_store(whole);
    Workload(*store, /*tenants=*/true).run();
  }
  std::mt19937_64 random(11);
  for (int last = 1; last <= whole->calls(); ++last) {
    const auto disk = std::make_shared<RecordingDisk>();
    disk->on_call = [last](int call, const char*) {
      if (call > last) throw PowerLost{};
    };
    std::unique_ptr<StateStore> store;
    std::optional<Workload> workload;
    try {
      store = open_store(disk);
      workload.emplace(*store, /*tenants=*/true);
      workload->run();
    } catch (const PowerLost&) {
    }
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE("call " + std::to_string(last) + ", survival " + std::to_string(i));
      const auto after = disk->after_power_loss([&](size_t of) { return random() % of; });
      const auto again = open_store(after);
      const Values found = values_in(*again);
      if (workload) expect_kept(*workload, found);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(EncryptedFolder, SetsNoFileAsideForAMissingKey) {
  using namespace ::recurve::testing;
  StateStore::Options small = options();
  std::ofstream(keys_) << to_text(std::vector{key(1)});
  Values before;
  {
    StateStore store(encrypt_folder(open_folder(folder_.path()), keys_), small);
    Workload workload(store, /*tenants=*/true);
    workload.run();
    before = workload.acknowledged;
  }
  std::map<std::string, std::string> taken;
  for (const std::string& name : key_files()) {
    taken[name] = bytes_of(folder_ / name);
    fs::remove(folder_ / name);
  }
  EXPECT_GT(taken.size(), 1u);
  {
    StateStore store(encrypt_folder(open_folder(folder_.path()), keys_), small);
    int sealed = 0;
    store.for_each_record([&](const StateStore::Record& record) {
      const auto made = make_image(header(kSmall).layout);
      EXPECT_THROW(store.read(*record.states.at(0), header(kSmall), made.rooms), KeyMissing);
      ++sealed;
    });
    EXPECT_GT(sealed, 3);
    // Concurrent changes move them too.
    Workload workload(store, /*tenants=*/true);
    for (int i = 0; i < 6; ++i) workload.commit({{"often"}});
    while (store.tidy()) continue;
    EXPECT_EQ(store.usage().set_aside, 0);
  }
  for (const auto& [name, bytes] : taken) std::ofstream(folder_ / name, std::ios::binary) << bytes;
  StateStore store(encrypt_folder(open_folder(folder_.path()), keys_), small);
  Values found = values_in(store);
  found.erase("often");
  before.erase("often");
  std::erase_if(before, [](const auto& value) { return !value.second; });
  EXPECT_EQ(found, before);
}

// A damaged journal is read from its copy, as without encryption; if that is damaged too, the rest
// is read.
// Of a state that grows: the pages that a turn adds are sealed with the key of its tenant, as all
// of it is, and read with those before them.
TEST_F(EncryptedFolder, SealsPageGroupsWithTheKeyOfTheirTenant) {
  StateHeader grown{.model = "m", .weights = "bf16", .chunk = 8};
  grown.layout.arrays = {{.name = "n", .shape = {4}},
                         {.name = "K", .layer = 1, .shape = {4}, .growth = StateGrowth::kPerToken}};
  const std::string marker = "PLAINTEXT OF A PAGE ";
  const NewImage made = make_image(grown.layout, 300);
  for (const auto room : made.rooms) {
    for (size_t i = 0; i < room.size(); ++i) room[i] = std::byte(marker[i % marker.size()]);
  }
  {
    StateStore store(open({key(1)}), ::recurve::testing::options());
    StoredPtr before;
    for (const int64_t position : {130, 200, 300}) {
      grown.position = position;
      grown.id = store.new_id();
      std::vector<StatePiece> pieces = *made.image;
      pieces.resize(1 + static_cast<size_t>(StateLayout::pages(position)));
      StateStore::Change change{.key = "s", .tenant = "alice", .states = {grown.id}};
      change.state = {grown, std::make_shared<const std::vector<StatePiece>>(pieces), before};
      const StateStore::Outcome outcome = store.commit({&change, 1})[0];
      ASSERT_EQ(outcome.error, "");
      before = outcome.state;
    }
    EXPECT_EQ(store.pages_of(*before).count, 4);
  }
  for (const auto& [name, bytes] : all_of(folder_.path())) {
    EXPECT_EQ(bytes.find(marker), std::string::npos) << name;
  }
  const auto read_it = [&](StateStore& store) {
    const NewImage found = make_image(grown.layout, 300);
    store.for_each_record([&](const StateStore::Record& record) {
      store.read(*record.states.at(0), grown, found.rooms);
    });
    return found;
  };
  {
    StateStore store(open({key(1)}), ::recurve::testing::options());
    const NewImage found = read_it(store);
    for (size_t p = 0; p < found.rooms.size(); ++p) {
      EXPECT_TRUE(std::ranges::equal(found.rooms[p], made.rooms[p])) << p;
    }
  }
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    if (entry.path().filename().string().starts_with(kTenantKeyFile)) fs::remove(entry.path());
  }
  StateStore store(open({key(1)}), ::recurve::testing::options());
  EXPECT_THROW(read_it(store), KeyMissing);
  EXPECT_EQ(store.usage().set_aside, 0);
}

TEST_F(EncryptedFolder, ReadsADamagedJournalFromItsCopy) {
  using namespace ::recurve::testing;
  std::ofstream(keys_) << to_text(std::vector{key(1)});
  const auto open_store = [&] {
    return std::make_unique<StateStore>(encrypt_folder(open_folder(folder_.path()), keys_),
                                        options());
  };
  Values before;
  {
    const auto store = open_store();
    Workload workload(*store);
    workload.commit({{"a"}, {"b"}});
    workload.commit({{"c"}});
    workload.commit({{"d"}});
    before = workload.acknowledged;
  }
  const std::map<std::string, std::string> whole = all_of(folder_.path());
  const auto restore = [&] {
    for (const auto& [name, bytes] : all_of(folder_.path())) fs::remove(folder_ / name);
    for (const auto& [name, bytes] : whole) std::ofstream(folder_ / name) << bytes;
  };
  const auto flip = [&](const std::string& name, size_t at) {
    std::string bytes = whole.at(name);
    bytes[at] ^= 1;
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  };
  for (const char* name : {"journal-1", "journal-copy-1"}) {
    for (size_t at = 0; at < whole.at(name).size(); at += 3 * kCallStep) {
      restore();
      flip(name, at);
      const auto store = open_store();
      ASSERT_EQ(values_in(*store), before) << name << " " << at;
      ASSERT_EQ(store->damage().in_doubt, 0);
    }
  }
  const size_t of_c = whole.at("journal-1").size() - 150;
  restore();
  flip("journal-1", of_c);
  flip("journal-copy-1", of_c);
  const auto store = open_store();
  EXPECT_TRUE(store->damage().records_lost);
  EXPECT_EQ(values_in(*store).size(), 3u);
  EXPECT_EQ(store->damage().in_doubt, 2);
}

TEST_F(EncryptedFolder, RefusesAFolderThatIsNotEncrypted) {
  {
    const auto plain = open_folder(folder_.path());
    plain->create("journal-1")->append("text");
    EXPECT_FALSE(is_encrypted(*plain));
  }
  EXPECT_THAT(error_of([&] { open({key(1)}); }), HasSubstr("not encrypted"));
  fs::remove(folder_ / "journal-1");
  open({key(1)});
  EXPECT_TRUE(is_encrypted(*open_folder(folder_.path())));
}

TEST_F(EncryptedFolder, ReadsAKeysFile) {
  const auto file = folder_ / "keys";
  const std::string one(64, '1'), two(64, 'a');
  std::ofstream(file) << one << "\n" << two << "\n";
  EXPECT_THAT(read_state_keys(file), ::testing::ElementsAre(key(0x11), key(0xaa)));
  for (const std::string& wrong : {std::string(), one.substr(1), one + "\n\n", one + "\n" + "x"}) {
    std::ofstream(file) << wrong;
    const std::string said = error_of([&] { read_state_keys(file); });
    EXPECT_THAT(said, HasSubstr("--state-keys"));
    EXPECT_EQ(said.find(one), std::string::npos) << "no key is in the error";
  }
}

}  // namespace recurve::encrypted_folder_test
