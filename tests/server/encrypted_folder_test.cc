#include "server/encrypted_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "tests/support/temp_dir.h"

namespace recurve::encrypted_folder_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

FolderKey key(uint8_t number) {
  FolderKey made;
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
  std::unique_ptr<FileSystem> open(std::vector<FolderKey> keys) {
    return encrypt_folder(open_folder(folder_.path()), keys);
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

  TempDir folder_;
  std::mt19937 random_{3};
};

TEST_F(EncryptedFolder, GivesBackWhatWasWritten) {
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

TEST_F(EncryptedFolder, ReadsWhatIsStillBeingWritten) {
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

TEST_F(EncryptedFolder, HasNothingToBeRead) {
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
  // The same text twice in a file, or in two files, is nowhere the same.
  const std::string one = files.at("state-1"), two = files.at("state-2");
  EXPECT_NE(one.substr(24), two.substr(24));
  EXPECT_NE(one.substr(28, 33), one.substr(28 + 33 + 16 + 4, 33));
}

TEST_F(EncryptedFolder, FindsEachByteThatWasChanged) {
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

TEST_F(EncryptedFolder, EndsWhereAPieceWasCutOff) {
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

TEST_F(EncryptedFolder, TakesANewKeyWithoutTouchingAState) {
  std::string text;
  {
    const auto folder = open({key(1)});
    text = written(*folder, "state-1", 100'000);
  }
  const auto before = all_of(folder_.path());
  open({key(2), key(1)});
  const auto after = all_of(folder_.path());
  EXPECT_NE(before.at("state-key"), after.at("state-key"));
  EXPECT_EQ(before.at("state-1"), after.at("state-1"));
  EXPECT_EQ(read(*open({key(2)})->open("state-1"), 0, text.size()), text);
  EXPECT_THAT(error_of([&] { open({key(1)}); }), HasSubstr("--state-keys"));
}

TEST_F(EncryptedFolder, IsNotMixedWithWhatIsNotEncrypted) {
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

TEST_F(EncryptedFolder, ReadsAFileOfKeys) {
  const auto file = folder_ / "keys";
  const std::string one(64, '1'), two(64, 'a');
  std::ofstream(file) << one << "\n" << two << "\n";
  EXPECT_THAT(read_folder_keys(file), ::testing::ElementsAre(key(0x11), key(0xaa)));
  for (const std::string& wrong : {std::string(), one.substr(1), one + "\n\n", one + "\n" + "x"}) {
    std::ofstream(file) << wrong;
    const std::string said = error_of([&] { read_folder_keys(file); });
    EXPECT_THAT(said, HasSubstr("--state-keys"));
    EXPECT_EQ(said.find(one), std::string::npos) << "no key is said";
  }
}

}  // namespace recurve::encrypted_folder_test
