// The relay between sockets: a client of OpenSSL's at one end, a door of the test's at the other.
#include "server/net/tls_relay.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificate.h"

namespace recurve::tls_relay_test {

using ::testing::StartsWith;

std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void must_block(int descriptor) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
}

// What has come at a descriptor up to its end.
std::string read_all(int descriptor) {
  std::string all, part(1 << 16, '\0');
  ssize_t got = 0;
  while ((got = read(descriptor, part.data(), part.size())) > 0) {
    all.append(part, 0, static_cast<size_t>(got));
  }
  return all;
}

bool send_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// A client whose calls block.
class TlsClient {
 public:
  explicit TlsClient(int descriptor) : descriptor_(descriptor) {
    SSL_set_fd(ssl_.get(), descriptor);
  }
  ~TlsClient() {
    ssl_.reset();
    close(descriptor_);
  }
  bool shake_hands() { return SSL_connect(ssl_.get()) == 1; }
  bool write(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size());
  }
  // So many bytes, or what there was.
  std::string read(size_t size) {
    std::string all(size, '\0');
    size_t count = 0;
    while (count < size) {
      const int got = SSL_read(ssl_.get(), all.data() + count, static_cast<int>(size - count));
      if (got <= 0) break;
      count += static_cast<size_t>(got);
    }
    all.resize(count);
    return all;
  }
  // The other side said that nothing follows, and was not only cut off.
  bool ended() {
    char byte = 0;
    const int got = SSL_read(ssl_.get(), &byte, 1);
    return got == 0 && SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN;
  }
  void end() { SSL_shutdown(ssl_.get()); }

 private:
  const int descriptor_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{SSL_CTX_new(TLS_client_method()),
                                                             SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{SSL_new(context_.get()), SSL_free};
};

class TlsRelayTest : public ::testing::Test {
 protected:
  // A connection to the relay: the client's end.
  int connect() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    relay_->accept(ends[1], relay_->new_name(), {.address = "192.0.2.1"}, door_);
    return ends[0];
  }
  // The door's end of the next connection, which blocks.
  int taken() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !taken_.empty(); });
    const int descriptor = taken_.front();
    taken_.pop_front();
    return descriptor;
  }
  // Of the only client that has not yet, with the door's end.
  int shake_hands(TlsClient& client) {
    std::thread shaking([&] { EXPECT_TRUE(client.shake_hands()); });
    const int descriptor = taken();
    shaking.join();
    return descriptor;
  }

  TempDir folder_;
  testing::TlsCertificate files_{folder_.path()};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> taken_;
  std::optional<TlsRelay> relay_{std::in_place, TlsFiles{files_.certificate, files_.key}};
  std::shared_ptr<TlsRelay::Door> door_ = std::make_shared<TlsRelay::Door>(
      TlsProtocol::kHttp1, [this](int descriptor, const Peer& peer) {
        EXPECT_EQ(peer.address, "192.0.2.1");
        must_block(descriptor);
        std::lock_guard lock(mutex_);
        taken_.push_back(descriptor);
        changed_.notify_all();
      });
};

TEST_F(TlsRelayTest, BytesOfAnySizesComeThroughBothWaysAtOnce) {
  constexpr int kClients = 4;
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([this] {  // a door that gives back what it gets
      const int descriptor = taken();
      std::string part(1 << 16, '\0');
      ssize_t got = 0;
      while ((got = read(descriptor, part.data(), part.size())) > 0) {
        EXPECT_TRUE(send_all(descriptor, std::string_view(part.data(), static_cast<size_t>(got))));
      }
      close(descriptor);
    });
    threads.emplace_back([this, c] {
      TlsClient client(connect());
      ASSERT_TRUE(client.shake_hands());
      std::mt19937_64 random(static_cast<uint64_t>(c));
      for (int i = 0; i < 300; ++i) {
        const size_t size = 1 + random() % (i % 10 == 0 ? 60'000 : 300);
        const std::string bytes = random_bytes(size, random());
        ASSERT_TRUE(client.write(bytes));
        ASSERT_TRUE(client.read(size) == bytes);
      }
      client.end();
      EXPECT_TRUE(client.ended());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TlsRelayTest, WhoReadsNothingHoldsUpItselfAlone) {
  const std::string bytes = random_bytes(8 << 20, 1);
  TlsClient slow(connect());
  const int slows = shake_hands(slow);
  std::thread door([&] {
    EXPECT_TRUE(send_all(slows, bytes));
    close(slows);
  });
  TlsClient other(connect());
  const int others = shake_hands(other);
  EXPECT_TRUE(send_all(others, "quick"));
  EXPECT_EQ(other.read(5), "quick");
  close(others);
  EXPECT_TRUE(slow.read(bytes.size()) == bytes);
  EXPECT_TRUE(slow.ended());
  door.join();
}

TEST_F(TlsRelayTest, AnEndIsPassedOnBehindWhatWasSaid) {
  TlsClient client(connect());
  const int descriptor = shake_hands(client);
  const std::string asked = random_bytes(100'000, 2), answered = random_bytes(100'000, 3);
  std::thread asking([&] {
    EXPECT_TRUE(client.write(asked));
    client.end();
  });
  EXPECT_TRUE(read_all(descriptor) == asked);
  asking.join();
  EXPECT_TRUE(send_all(descriptor, answered));  // the other way is still open
  close(descriptor);
  EXPECT_TRUE(client.read(answered.size()) == answered);
  EXPECT_TRUE(client.ended());
}

TEST_F(TlsRelayTest, WhatADoorHasSaidGoesOutBeforeTheRelayEnds) {
  TlsClient client(connect());
  const int descriptor = shake_hands(client);
  const std::string answered = random_bytes(50'000, 4);
  EXPECT_TRUE(send_all(descriptor, answered));
  close(descriptor);
  std::string got;
  std::thread reading([&] { got = client.read(answered.size()); });
  relay_.reset();
  reading.join();
  EXPECT_TRUE(got == answered);
}

TEST_F(TlsRelayTest, ADoorThatIsClosedTakesNothing) {
  door_->close();
  TlsClient client(connect());
  client.shake_hands();  // which the relay does all the same
  EXPECT_EQ(client.read(1), "");
  EXPECT_TRUE(taken_.empty());
}

TEST_F(TlsRelayTest, WhatIsNoTlsIsCutOff) {
  const int descriptor = connect();
  EXPECT_TRUE(send_all(descriptor, "GET / HTTP/1.1\r\n\r\n"));
  read_all(descriptor);  // to its end, an alert maybe before it
  close(descriptor);
  EXPECT_TRUE(taken_.empty());
}

TEST_F(TlsRelayTest, FilesOfNoUseSayWhichFlagIsMeant) {
  const auto problem = [](const TlsFiles& files) -> std::string {
    try {
      const TlsSettings settings(files);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(problem({"/absent", files_.key}),
              StartsWith("\"/absent\" cannot be used as the server's"));
  EXPECT_THAT(problem({files_.certificate, files_.certificate}), ::testing::HasSubstr("--tls-key"));
  EXPECT_THAT(problem({files_.certificate, files_.key, files_.key}),
              ::testing::HasSubstr("--tls-client-ca"));
  EXPECT_EQ(problem({files_.certificate, files_.key, files_.certificate}), "");
}

}  // namespace recurve::tls_relay_test
