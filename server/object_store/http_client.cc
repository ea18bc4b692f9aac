#include "server/object_store/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "server/object_store/trimmed.h"

namespace recurve {
namespace {

// More than this many connections are not kept for later calls.
constexpr size_t kMostIdle = 16;
// The body of an answer that says why a request was refused.
constexpr size_t kMostOfError = size_t{1} << 16;

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

HeaderList list_of(const std::vector<std::string>& headers) {
  HeaderList list;
  for (const std::string& header : headers) {
    curl_slist* longer = curl_slist_append(list.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    static_cast<void>(list.release());
    list.reset(longer);
  }
  return list;
}

// A call in progress: what libcurl's callbacks read and write.
struct Transfer {
  const HttpCall& call;
  HttpResponse answer = {};
  size_t part = 0, offset = 0;  // of the body, what is sent next
  bool refused = false;         // by the status of the answer
  bool too_large = false, no_memory = false;
};

size_t read_body(char* to, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  size_t room = size * count, copied = 0;
  while (room > 0 && transfer.part < transfer.call.body.size()) {
    const std::string_view rest = transfer.call.body[transfer.part].substr(transfer.offset);
    const size_t bytes = std::min(room, rest.size());
    std::memcpy(to + copied, rest.data(), bytes);
    copied += bytes;
    room -= bytes;
    transfer.offset += bytes;
    if (bytes == rest.size()) ++transfer.part, transfer.offset = 0;
  }
  return copied;
}

// libcurl would send the request again when a connection that it uses again was closed meanwhile.
// The server may have carried out the first one: the caller decides.
int refuse_to_send_again(void*, curl_off_t, int) { return CURL_SEEKFUNC_FAIL; }

size_t append_body(char* bytes, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  std::string& body = transfer.answer.body;
  const size_t most = transfer.refused ? std::max(kMostOfError, transfer.call.most_bytes)
                                       : transfer.call.most_bytes;
  if (size * count > most - body.size()) {
    transfer.too_large = true;
    return CURL_WRITEFUNC_ERROR;
  }
  try {
    body.append(bytes, size * count);
  } catch (const std::bad_alloc&) {
    transfer.no_memory = true;
    return CURL_WRITEFUNC_ERROR;
  }
  return size * count;
}

// The value of the header, if the line is one of that name.
bool is_header(std::string_view line, std::string_view name, std::string_view* value) {
  if (line.size() <= name.size() || line[name.size()] != ':' ||
      strncasecmp(line.data(), name.data(), name.size()) != 0) {
    return false;
  }
  *value = trimmed(line.substr(name.size() + 1));
  return true;
}

size_t read_header(char* bytes, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  HttpResponse& answer = transfer.answer;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) transfer.refused = line.find(" 2") == std::string_view::npos;
  std::string_view value;
  constexpr size_t kMostBytes = 256;
  if (is_header(line, "etag", &value) && value.size() <= kMostBytes) answer.etag = value;
  if (is_header(line, "x-amz-bucket-region", &value) && value.size() <= kMostBytes) {
    answer.region = value;
  }
  if (is_header(line, "retry-after", &value)) {
    uint32_t seconds = 0;
    std::from_chars(value.data(), value.data() + value.size(), seconds);
    answer.retry_after = std::chrono::seconds(std::min(seconds, uint32_t{60}));
  }
  return line.size();
}

bool is_permanent(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
}

}  // namespace

struct HttpClient::Connection {
  CURL* const easy = curl_easy_init();
  char problem[CURL_ERROR_SIZE] = "";

  Connection() {
    if (easy == nullptr) throw std::bad_alloc();
  }
  ~Connection() { curl_easy_cleanup(easy); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  template <typename Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(easy, option, value);
    if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
    if (code != CURLE_OK) {
      throw std::runtime_error(
          fmt::format("libcurl {} lacks an option: {}", curl_version(), curl_easy_strerror(code)));
    }
  }

  void prepare(const HttpClientOptions& options) {
    curl_easy_reset(easy);  // keeps the connection
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
    set(CURLOPT_PROXY, "");  // none, whatever the environment says
    set(CURLOPT_USERAGENT, "recurve");
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, 1024L);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.most_silence.count()));
    if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
    set(CURLOPT_ERRORBUFFER, problem);
    problem[0] = '\0';
  }

  void receive(Transfer* transfer) {
    set(CURLOPT_WRITEFUNCTION, &append_body);
    set(CURLOPT_WRITEDATA, transfer);
    set(CURLOPT_HEADERFUNCTION, &read_header);
    set(CURLOPT_HEADERDATA, transfer);
  }

  void send_body(Transfer* transfer) {
    uint64_t bytes = 0;
    for (const std::string_view part : transfer->call.body) bytes += part.size();
    // With CURLOPT_UPLOAD a small body, too, would wait for the server's "100 Continue".
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(bytes));
    set(CURLOPT_READFUNCTION, &read_body);
    set(CURLOPT_READDATA, transfer);
    set(CURLOPT_SEEKFUNCTION, &refuse_to_send_again);
  }

  void sign(const AwsCredentials& credentials, const std::string& region) {
    set(CURLOPT_AWS_SIGV4, fmt::format("aws:amz:{}:s3", region).c_str());
    set(CURLOPT_USERNAME, credentials.key_id.c_str());
    set(CURLOPT_PASSWORD, credentials.secret.c_str());
  }

  // Whether anything of the request may have left this machine.
  bool has_sent() const {
    long bytes = 0;
    return curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &bytes) != CURLE_OK || bytes > 0;
  }
};

HttpClient::HttpClient(HttpClientOptions options) : options_(std::move(options)) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialized != CURLE_OK) {
    throw std::runtime_error(
        fmt::format("cannot use libcurl: {}", curl_easy_strerror(initialized)));
  }
}

HttpClient::~HttpClient() = default;

HttpResponse HttpClient::send(const HttpCall& call,
                              std::chrono::steady_clock::time_point deadline) {
  std::unique_ptr<Connection> connection = take();
  connection->prepare(options_);
  Transfer transfer{.call = call};
  connection->receive(&transfer);
  connection->set(CURLOPT_URL, call.url.c_str());
  connection->set(CURLOPT_CUSTOMREQUEST, call.method.c_str());
  if (call.has_body) connection->send_body(&transfer);
  if (call.sign != nullptr) connection->sign(*call.sign, call.region);
  const HeaderList headers = list_of(call.headers);
  connection->set(CURLOPT_HTTPHEADER, headers.get());
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  connection->set(CURLOPT_TIMEOUT_MS, std::max<long>(1, static_cast<long>(left.count())));

  const CURLcode code = curl_easy_perform(connection->easy);
  if (transfer.no_memory || code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
  HttpResponse answer = std::move(transfer.answer);
  answer.sent = connection->has_sent();
  if (code == CURLE_OK) {
    long status = 0;
    curl_easy_getinfo(connection->easy, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
  } else {
    answer.problem = transfer.too_large
                         ? fmt::format("the answer has more than {} bytes", call.most_bytes)
                     : connection->problem[0] != '\0' ? connection->problem
                                                      : curl_easy_strerror(code);
    answer.permanent = transfer.too_large || is_permanent(code);
  }
  give_back(std::move(connection));
  return answer;
}

std::string url_escaped(std::string_view text) {
  if (text.empty()) return {};  // of which libcurl would look for the end
  const std::unique_ptr<char, decltype(&curl_free)> escaped(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), curl_free);
  if (escaped == nullptr) throw std::bad_alloc();
  return escaped.get();
}

std::unique_ptr<HttpClient::Connection> HttpClient::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Connection> connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return std::make_unique<Connection>();
}

// The easy handle has pointers to the call, which prepare() resets before they are used again.
void HttpClient::give_back(std::unique_ptr<Connection> connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

}  // namespace recurve
