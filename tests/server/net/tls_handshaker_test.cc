// Handshakes and the bytes after them, between an OpenSSL client and a receiver without TLS code.
#include "server/net/tls_handshaker.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
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

namespace recurve::tls_handshaker_test {

using ::testing::StartsWith;

std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void wait_until(int descriptor, short ready) {
  pollfd watched{descriptor, ready, 0};
  poll(&watched, 1, -1);
}

// Waits for bytes at the receiver's end and reads them; empty: the end.
std::string read_some(int descriptor) {
  std::string part(20'000, '\0');
  while (true) {
    const ssize_t got = recv(descriptor, part.data(), part.size(), 0);
    if (got >= 0) return part.substr(0, static_cast<size_t>(got));
    if (errno != EAGAIN) return "";
    wait_until(descriptor, POLLIN);
  }
}

std::string read_all(int descriptor) {
  std::string all, part;
  while (!(part = read_some(descriptor)).empty()) all += part;
  return all;
}

// Into two buffers, as gRPC does.
bool send_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t first = bytes.size() / 3;
    iovec parts[2] = {{const_cast<char*>(bytes.data()), first},
                      {const_cast<char*>(bytes.data()) + first, bytes.size() - first}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(descriptor, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent < 0) wait_until(descriptor, POLLOUT);
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  }
  return true;
}

void end(int descriptor) {
  shutdown(descriptor, SHUT_RDWR);
  close(descriptor);
}

// Both ends of a connection.
std::array<int, 2> connect_tcp() {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listening, raw, size), 0);
  EXPECT_EQ(listen(listening, 1), 0);
  EXPECT_EQ(getsockname(listening, raw, &size), 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(client, raw, size), 0);
  const int server = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  close(listening);
  return {client, server};
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
  // Reads that many bytes, or fewer at the end.
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
  // The other side has sent close_notify, and did not just disconnect.
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

class TlsHandshakerTest : public ::testing::Test {
 protected:
  // The client's end of a new connection.
  int connect() {
    const auto [client, server] = connect_tcp();
    handshaker_->accept(server, {.address = "192.0.2.1"}, receiver_);
    return client;
  }
  // The receiver's end of the next connection.
  int taken() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !taken_.empty(); });
    const int descriptor = taken_.front();
    taken_.pop_front();
    return descriptor;
  }
  // Completes the handshake of the only client without one. Returns the receiver's end.
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
  std::optional<TlsHandshaker> handshaker_{std::in_place, TlsFiles{files_.certificate, files_.key}};
  std::shared_ptr<TlsHandshaker::Receiver> receiver_ = std::make_shared<TlsHandshaker::Receiver>(
      TlsProtocol::kHttp1, [this](int descriptor, const Peer& peer) {
        EXPECT_EQ(peer.address, "192.0.2.1");
        std::lock_guard lock(mutex_);
        taken_.push_back(descriptor);
        changed_.notify_all();
      });
};

TEST_F(TlsHandshakerTest, TransfersBytesOfAnySizeInBothDirections) {
  constexpr int kClients = 4;
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([this] {  // echoes
      const int descriptor = taken();
      std::string part;
      while (!(part = read_some(descriptor)).empty()) EXPECT_TRUE(send_all(descriptor, part));
      end(descriptor);
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

TEST_F(TlsHandshakerTest, ReadsBytesThatFollowTheHandshakeAtOnce) {
  for (int i = 0; i < 50; ++i) {
    TlsClient client(connect());
    std::thread saying([&] {
      ASSERT_TRUE(client.shake_hands());
      EXPECT_TRUE(client.write("at once"));
    });
    const int descriptor = taken();
    EXPECT_EQ(read_some(descriptor), "at once");
    saying.join();
    end(descriptor);
  }
}

TEST_F(TlsHandshakerTest, ASlowReaderDelaysNoOther) {
  const std::string bytes = random_bytes(8 << 20, 1);
  TlsClient slow(connect());
  const int slows = shake_hands(slow);
  std::thread receiver([&] {
    EXPECT_TRUE(send_all(slows, bytes));
    end(slows);
  });
  TlsClient other(connect());
  const int others = shake_hands(other);
  EXPECT_TRUE(send_all(others, "quick"));
  EXPECT_EQ(other.read(5), "quick");
  end(others);
  EXPECT_TRUE(slow.read(bytes.size()) == bytes);
  EXPECT_TRUE(slow.ended());
  receiver.join();
}

TEST_F(TlsHandshakerTest, TheEndFollowsTheBytes) {
  TlsClient client(connect());
  const int descriptor = shake_hands(client);
  const std::string asked = random_bytes(100'000, 2), answered = random_bytes(100'000, 3);
  std::thread asking([&] {
    EXPECT_TRUE(client.write(asked));
    client.end();
  });
  EXPECT_TRUE(read_all(descriptor) == asked);
  asking.join();
  std::thread answering([&] {
    EXPECT_TRUE(send_all(descriptor, answered));  // the other way is still open
    shutdown(descriptor, SHUT_WR);
    shutdown(descriptor, SHUT_WR);  // said once
  });
  EXPECT_TRUE(client.read(answered.size()) == answered);
  EXPECT_TRUE(client.ended());
  answering.join();
  close(descriptor);
}

// A connection that breaks within TLS has not ended properly.
TEST_F(TlsHandshakerTest, AnInvalidRecordBreaksTheConnection) {
  const auto [ends, server] = connect_tcp();
  handshaker_->accept(server, {.address = "192.0.2.1"}, receiver_);
  TlsClient client(dup(ends));
  const int descriptor = shake_hands(client);
  EXPECT_EQ(send(ends, "no record at all", 16, MSG_NOSIGNAL), 16);
  wait_until(descriptor, POLLIN);
  char byte = 0;
  EXPECT_EQ(recv(descriptor, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  end(descriptor);
  close(ends);
}

TEST_F(TlsHandshakerTest, ReportsWhetherBytesMayBeUnread) {
  TlsClient client(connect());
  const int descriptor = shake_hands(client);
  ASSERT_TRUE(client.write("0123456789"));
  wait_until(descriptor, POLLIN);
  std::array<char, 6> bytes{};
  const auto receive = [&](int* left) {
    alignas(cmsghdr) std::array<char, 64> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(descriptor, &message, 0);
    const cmsghdr* said = CMSG_FIRSTHDR(&message);
    *left = -1;
    if (said == nullptr || said->cmsg_level != SOL_TCP || said->cmsg_type != TCP_CM_INQ) return got;
    std::memcpy(left, CMSG_DATA(said), sizeof *left);
    return got;
  };
  int left = -1;
  EXPECT_EQ(receive(&left), 6);
  EXPECT_EQ(left, 1);
  EXPECT_EQ(receive(&left), 4);
  EXPECT_EQ(left, 0);
  // An end that arrived together with bytes is reported.
  ASSERT_TRUE(client.write("0123"));
  client.end();
  wait_until(descriptor, POLLRDHUP | POLLIN);
  EXPECT_EQ(receive(&left), 4);
  while (receive(&left) < 0 && errno == EAGAIN) wait_until(descriptor, POLLIN);
  EXPECT_EQ(receive(&left), 0);
  end(descriptor);
}

TEST_F(TlsHandshakerTest, ConnectionsOutliveIt) {
  TlsClient client(connect());
  const int descriptor = shake_hands(client);
  handshaker_.reset();
  EXPECT_TRUE(send_all(descriptor, "still there"));
  EXPECT_EQ(client.read(11), "still there");
  end(descriptor);
  EXPECT_TRUE(client.ended());
}

TEST_F(TlsHandshakerTest, AClosedReceiverTakesNothing) {
  receiver_->close();
  TlsClient client(connect());
  client.shake_hands();  // which is done all the same
  EXPECT_EQ(client.read(1), "");
  EXPECT_TRUE(taken_.empty());
}

TEST_F(TlsHandshakerTest, BytesThatAreNotTlsEndTheConnection) {
  const int descriptor = connect();
  EXPECT_TRUE(send_all(descriptor, "GET / HTTP/1.1\r\n\r\n"));
  std::array<char, 100> bytes;
  while (recv(descriptor, bytes.data(), bytes.size(), 0) > 0) continue;  // an alert, and the end
  close(descriptor);
  EXPECT_TRUE(taken_.empty());
}

TEST_F(TlsHandshakerTest, ErrorsOfFilesNameTheFlag) {
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

}  // namespace recurve::tls_handshaker_test
