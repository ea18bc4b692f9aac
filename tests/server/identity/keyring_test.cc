// Keys files, and the callers that a server identifies by them.
#include "server/identity/keyring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "server/identity/atomic_file.h"
#include "server/identity/key_file.h"
#include "server/identity/tenants.h"

namespace recurve {
namespace keyring_test {
namespace {

namespace fs = std::filesystem;
using Finding = Keyring::Finding;
using testing::HasSubstr;

class KeyringTest : public testing::Test {
 protected:
  KeyringTest() : folder_(fs::path(testing::TempDir()) / fmt::format("keyring-{}", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~KeyringTest() override { fs::remove_all(folder_); }

  std::string add(const std::string& tenant, Role role = Role::kUser,
                  std::optional<KeyTime> expires = {}) {
    return add_key(path_, tenant, role, expires);
  }
  std::string text() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

  const fs::path folder_;
  const std::string path_ = (folder_ / "keys.json").string();
};

std::string problem_of(const std::string& text) {
  try {
    parse_key_file(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// As a server holds the lock of its --state-dir.
TEST_F(KeyringTest, AFolderThatAnotherProcessHasLockedIsReported) {
  const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(folder, LOCK_EX), 0);
  try {
    const FolderLock lock(path_, std::chrono::milliseconds(0));
    ADD_FAILURE() << "there are two locks";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("another process has locked its folder"));
    EXPECT_THAT(error.what(), HasSubstr(path_));
  }
  close(folder);
  const FolderLock lock(path_, std::chrono::milliseconds(0));
}

TEST_F(KeyringTest, AKeyIsKnownAndItsFileHasOnlyAHash) {
  const std::string key = add("alice", Role::kObserver);
  EXPECT_EQ(key.size(), 60U);
  const std::string secret = key.substr(key.size() - 43);
  EXPECT_THAT(text(), testing::Not(HasSubstr(secret)));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  Keyring keys(path_);
  const auto found = keys.find(key, "");
  EXPECT_EQ(found.why, Finding::kKnown);
  EXPECT_EQ(found.identity.tenant_name, "alice");
  EXPECT_EQ(found.identity.role, Role::kObserver);
}

// The example of FIPS 180-2.
TEST_F(KeyringTest, TheHashIsSha256) {
  const KeyHash hash = hash_of("abc");
  EXPECT_EQ(fmt::format("{:02x}", fmt::join(hash, "")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(KeyringTest, UnknownCallersAndWhy) {
  const std::string key = add("alice");
  const std::string old = add("alice", Role::kUser, KeyTime(std::chrono::seconds(1)));
  Keyring keys(path_);
  const auto why = [&](std::string_view shown, std::string_view subject = "") {
    const auto found = keys.find(shown, subject);
    if (found.why != Finding::kKnown) {
      EXPECT_EQ(found.identity.role, Role::kAnonymous);
      EXPECT_NE(found.identity.tenant, kAnyone.tenant);
    }
    return found.why;
  };
  EXPECT_EQ(why(""), Finding::kNoKey);
  EXPECT_EQ(why("secret"), Finding::kNotAKey);
  EXPECT_EQ(why(key + "x"), Finding::kNotAKey);
  std::string wrong = key;
  wrong.back() = wrong.back() == 'A' ? 'B' : 'A';
  EXPECT_EQ(why(wrong), Finding::kWrongKey);
  wrong = key;
  wrong[4] = wrong[4] == '0' ? '1' : '0';
  EXPECT_EQ(why(wrong), Finding::kUnknownKey);
  EXPECT_EQ(why(old), Finding::kExpiredKey);
  EXPECT_EQ(why("", "CN=me"), Finding::kUnknownCertificate);
  // A certificate does not replace a wrong key.
  EXPECT_EQ(why(wrong, "CN=me"), Finding::kUnknownKey);
}

TEST_F(KeyringTest, ATenantHasSeveralKeysAndOneIsRemoved) {
  const std::string first = add("alice"), second = add("alice"), other = add("bob");
  {
    Keyring keys(path_);
    EXPECT_EQ(keys.find(first, "").identity.tenant, keys.find(second, "").identity.tenant);
    EXPECT_NE(keys.find(first, "").identity.tenant, keys.find(other, "").identity.tenant);
  }
  EXPECT_TRUE(remove_key(path_, std::string(key_id_of(first))));
  EXPECT_FALSE(remove_key(path_, std::string(key_id_of(first))));
  Keyring keys(path_);
  EXPECT_EQ(keys.find(first, "").why, Finding::kUnknownKey);
  EXPECT_EQ(keys.find(second, "").why, Finding::kKnown);
}

TEST_F(KeyringTest, CertificatesAndLimitsAreRead) {
  write(R"({"tenants": {"alice": {"weight": 2, "slots": 3, "waiting": 5, "sessions": 7,
                                   "priority": 1, "choices": 4, "prompt_tokens": 100,
                                   "tokens_per_minute": 600, "host_bytes": 5e9, "disk_bytes": 0,
                                   "page_bytes": 1e8, "store_bytes": 7e10}},
            "certificates": [{"subject": "CN=me,O=we", "tenant": "alice", "role": "admin"}]})");
  Keyring keys(path_);
  const Identity me = keys.find("", "CN=me,O=we").identity;
  EXPECT_EQ(me.role, Role::kAdmin);
  EXPECT_EQ(me.tenant, tenant_named("alice").id);
  EXPECT_EQ(me.limits.weight, 2);
  EXPECT_EQ(me.limits.slots, 3);
  EXPECT_EQ(me.limits.waiting, 5);
  EXPECT_EQ(me.limits.sessions, 7);
  EXPECT_EQ(me.limits.priority, 1);
  EXPECT_EQ(me.limits.choices, 4);
  EXPECT_EQ(me.limits.prompt_tokens, 100);
  EXPECT_EQ(me.limits.tokens_per_minute, 600);
  EXPECT_EQ(me.limits.host_bytes, 5'000'000'000);
  EXPECT_EQ(me.limits.disk_bytes, 0);
  EXPECT_EQ(me.limits.page_bytes, 100000000);
  EXPECT_EQ(me.limits.store_bytes, 70'000'000'000);
  EXPECT_EQ(std::string_view(me.key_id), "certificate");
  // Adding a key keeps all of it.
  add("alice");
  Keyring after(path_);
  const Identity later = after.find("", "CN=me,O=we").identity;
  EXPECT_EQ(later.limits.slots, 3);
  EXPECT_EQ(later.limits.choices, 4);
  EXPECT_EQ(later.limits.host_bytes, 5'000'000'000);
  EXPECT_EQ(later.limits.disk_bytes, 0);
}

TEST_F(KeyringTest, ErrorsOfAFileAreNamed) {
  EXPECT_THAT(problem_of("keys"), HasSubstr("not JSON"));
  EXPECT_THAT(problem_of("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(problem_of(R"({"key": []})"), HasSubstr("\"key\""));
  EXPECT_THAT(problem_of(R"({"keys": {}})"), HasSubstr("\"keys\" must be a list"));
  EXPECT_THAT(problem_of(R"({"keys": [{"id": "1"}]})"), HasSubstr("\"tenant\""));
  EXPECT_THAT(problem_of(R"({"tenants": {"a b": {}}})"), HasSubstr("letters, digits"));
  EXPECT_THAT(problem_of(R"({"tenants": {"a": {"slots": 0}}})"), HasSubstr("\"slots\""));
  EXPECT_THAT(problem_of(R"({"tenants": {"a": {"slot": 1}}})"), HasSubstr("\"slot\""));
  const std::string key =
      R"("id": "0123456789ab", "tenant": "a", "sha256": ")" + std::string(64, '0') + "\"";
  EXPECT_EQ(problem_of("{\"keys\": [{" + key + "}]}"), "");
  EXPECT_THAT(problem_of("{\"keys\": [{" + key + R"(, "role": "root"}]})"), HasSubstr("\"root\""));
  EXPECT_THAT(problem_of("{\"keys\": [{" + key + R"(, "expires": "soon"}]})"),
              HasSubstr("2026-12-31"));
  EXPECT_THAT(problem_of("{\"keys\": [{" + key + "}, {" + key + "}]}"), HasSubstr("not unique"));
  EXPECT_FALSE(time_from("2026-02-30T00:00:00Z"));
  EXPECT_EQ(to_text(*time_from("2026-02-28T01:02:03Z")), "2026-02-28T01:02:03Z");
}

// Concurrent processes, and threads too, wait for each other: no key is lost.
TEST_F(KeyringTest, KeysAddedConcurrentlyAreAllInTheFile) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) add("alice");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read_key_file(path_).keys.size(), 20U);
}

TEST_F(KeyringTest, NamesThatATenantListsAreForThoseThatListThem) {
  write(
      R"({"tenants": {"alice": {"adapters": ["law", "tax"], "initial_states": ["tale"], "slots": 2},
                        "bob": {"adapters": ["tax"]}, "carol": {}}})");
  add("alice");  // writes the file again
  Keyring keyring(path_);
  const auto sees = [&](BoundNames::Kind kind, const char* name) {
    std::string who;
    for (const char* tenant : {"alice", "bob", "carol", "dave"}) {
      if (keyring.sees(tenant, kind, name)) who += tenant[0];
    }
    return who;
  };
  EXPECT_EQ(sees(&BoundNames::adapters, "law"), "a");
  EXPECT_EQ(sees(&BoundNames::adapters, "tax"), "ab");
  EXPECT_EQ(sees(&BoundNames::adapters, "tale"), "abcd") << "of the other kind";
  EXPECT_EQ(sees(&BoundNames::initial_states, "tale"), "a");
  EXPECT_EQ(sees(&BoundNames::initial_states, "law"), "abcd");
  for (const char* wrong : {R"("law")", "[1]", R"([""])", "{}"}) {
    EXPECT_THAT(problem_of(fmt::format(R"({{"tenants": {{"a": {{"adapters": {}}}}}}})", wrong)),
                HasSubstr("tenant \"a\": \"adapters\" must be a list of names"));
  }
}

TEST_F(KeyringTest, TenantsKeepTheirNumbers) {
  EXPECT_EQ(tenant_named("default").id, kAnyone.tenant);
  const Tenant alice = tenant_named("alice");
  EXPECT_EQ(tenant_named("alice").id, alice.id);
  EXPECT_EQ(tenant_named("alice").name.data(), alice.name.data());
}

}  // namespace
}  // namespace keyring_test
}  // namespace recurve
