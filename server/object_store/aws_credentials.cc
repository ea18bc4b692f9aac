#include "server/object_store/aws_credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "server/identity/file_stamp.h"
#include "server/object_store/http_client.h"
#include "server/object_store/trimmed.h"
#include "server/object_store/xml_element.h"

namespace recurve {
namespace {

using std::chrono::system_clock;

constexpr size_t kMostFileBytes = size_t{1} << 20;

std::string read_small_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("cannot read {}", path));
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) throw std::runtime_error(fmt::format("cannot read {}", path));
  if (text.size() > kMostFileBytes) {
    throw std::runtime_error(fmt::format("{} has more than {} bytes", path, kMostFileBytes));
  }
  return text;
}

// Keys of the environment.
class FixedCredentials : public AwsCredentialSource {
 public:
  explicit FixedCredentials(AwsCredentials credentials) : credentials_(std::move(credentials)) {}
  AwsCredentials current() override { return credentials_; }
  void refuse(const AwsCredentials&) override {}

 private:
  const AwsCredentials credentials_;
};

// A profile of the file that AWS's tools share.
class ProfileCredentials : public AwsCredentialSource {
 public:
  ProfileCredentials(std::string file, std::string profile)
      : file_(std::move(file)), profile_(std::move(profile)) {}

  AwsCredentials current() override {
    const std::lock_guard lock(mutex_);
    const FileStamp stamp = stamp_of(file_);
    if (credentials_.key_id.empty() || stamp != stamp_) {
      credentials_ = read();
      stamp_ = stamp;
    }
    return credentials_;
  }
  void refuse(const AwsCredentials& refused) override {
    const std::lock_guard lock(mutex_);
    if (refused.key_id == credentials_.key_id) credentials_ = {};
  }

 private:
  AwsCredentials read() const {
    const std::string text = read_small_file(file_);
    AwsCredentials found;
    bool ours = false;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = trimmed(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
      if (line.empty() || line[0] == '#' || line[0] == ';') continue;
      if (line[0] == '[') {
        ours = trimmed(line.substr(1, line.find(']') - 1)) == profile_;
      } else if (const size_t sign = line.find('='); ours && sign != std::string::npos) {
        const std::string_view name = trimmed(line.substr(0, sign));
        const std::string_view value = trimmed(line.substr(sign + 1));
        if (name == "aws_access_key_id") found.key_id = value;
        if (name == "aws_secret_access_key") found.secret = value;
        if (name == "aws_session_token") found.session_token = value;
      }
    }
    if (found.key_id.empty() || found.secret.empty()) {
      throw std::runtime_error(fmt::format(
          "{}: profile \"{}\" lacks aws_access_key_id or aws_secret_access_key", file_, profile_));
    }
    return found;
  }

  const std::string file_, profile_;
  std::mutex mutex_;  // guards the members below
  FileStamp stamp_;
  AwsCredentials credentials_;
};

system_clock::time_point expiration_of(const std::string& text) {
  const std::optional<time_t> time = xml_time(text);
  if (!time) {
    throw std::runtime_error("the security token service answered without an expiration time");
  }
  return system_clock::from_time_t(*time);
}

// Keys for a role, which the security token service gives for the token of a web identity.
class WebIdentityCredentials : public AwsCredentialSource {
 public:
  WebIdentityCredentials(const AwsEnvironment& environment, std::string endpoint, HttpClient& http)
      : role_(environment.role),
        session_(environment.role_session.empty() ? "recurve" : environment.role_session),
        token_file_(environment.token_file),
        endpoint_(std::move(endpoint)),
        http_(http) {}

  // Another call that needs the keys waits for the one that renews them.
  AwsCredentials current() override {
    const std::lock_guard lock(mutex_);
    const auto now = system_clock::now();
    if (now < renew_at_) return credentials_;
    try {
      credentials_ = renew();
      const auto life = *credentials_.expires - now;
      renew_at_ = *credentials_.expires -
                  std::min<system_clock::duration>(life / 4, std::chrono::minutes(5));
    } catch (const std::runtime_error&) {
      if (!credentials_.expires || now >= *credentials_.expires) throw;
      renew_at_ = now + std::chrono::seconds(10);  // the ones at hand are still valid
    }
    return credentials_;
  }
  void refuse(const AwsCredentials& refused) override {
    const std::lock_guard lock(mutex_);
    if (refused.key_id != credentials_.key_id) return;
    credentials_ = {};
    renew_at_ = {};
  }

 private:
  AwsCredentials renew() {
    const std::string body = fmt::format(
        "Action=AssumeRoleWithWebIdentity&RoleArn={}&RoleSessionName={}&Version=2011-06-15"
        "&WebIdentityToken={}",
        url_escaped(role_), url_escaped(session_),
        url_escaped(trimmed(read_small_file(token_file_))));
    const std::string_view parts[] = {body};
    const HttpResponse answer =
        http_.send({.method = "POST",
                    .url = endpoint_ + "/",
                    .headers = {"Content-Type: application/x-www-form-urlencoded"},
                    .body = parts,
                    .has_body = true,
                    .most_bytes = kMostFileBytes},
                   std::chrono::steady_clock::now() + std::chrono::seconds(10));
    const auto element = [&](const char* name) {
      return std::string(xml_element(answer.body, name));
    };
    if (answer.status != 200) {
      throw std::runtime_error(fmt::format(
          "{} gave no credentials for role {}: {}", endpoint_, role_,
          answer.status == 0
              ? answer.problem
              : fmt::format("HTTP {} {}", answer.status, element("Code").substr(0, 100))));
    }
    AwsCredentials given{.key_id = element("AccessKeyId"),
                         .secret = element("SecretAccessKey"),
                         .session_token = element("SessionToken"),
                         .expires = expiration_of(element("Expiration"))};
    if (given.key_id.empty() || given.secret.empty()) {
      throw std::runtime_error(fmt::format("{} answered without credentials", endpoint_));
    }
    return given;
  }

  const std::string role_, session_, token_file_, endpoint_;
  HttpClient& http_;
  std::mutex mutex_;  // guards the members below
  AwsCredentials credentials_;
  system_clock::time_point renew_at_;
};

}  // namespace

AwsEnvironment AwsEnvironment::read(const Get& get) {
  const auto value = [&](const char* name) {
    const char* set = get(name);
    return std::string(set == nullptr ? "" : set);
  };
  const auto either = [](std::string first, std::string other) {
    return first.empty() ? std::move(other) : std::move(first);
  };
  const std::string home = value("HOME");
  return {.key_id = value("AWS_ACCESS_KEY_ID"),
          .secret = value("AWS_SECRET_ACCESS_KEY"),
          .session_token = value("AWS_SESSION_TOKEN"),
          .role = value("AWS_ROLE_ARN"),
          .role_session = value("AWS_ROLE_SESSION_NAME"),
          .token_file = value("AWS_WEB_IDENTITY_TOKEN_FILE"),
          .credentials_file = either(value("AWS_SHARED_CREDENTIALS_FILE"),
                                     home.empty() ? "" : home + "/.aws/credentials"),
          .profile = either(value("AWS_PROFILE"), "default"),
          .region = either(value("AWS_REGION"), either(value("AWS_DEFAULT_REGION"), "us-east-1")),
          .ca_file = value("AWS_CA_BUNDLE")};
}

std::unique_ptr<AwsCredentialSource> find_aws_credentials(const AwsEnvironment& environment,
                                                          std::string sts_endpoint,
                                                          HttpClient& http) {
  if (!environment.key_id.empty() && !environment.secret.empty()) {
    return std::make_unique<FixedCredentials>(
        AwsCredentials{environment.key_id, environment.secret, environment.session_token});
  }
  if (!environment.token_file.empty() && !environment.role.empty()) {
    if (sts_endpoint.empty()) {
      sts_endpoint = fmt::format("https://sts.{}.amazonaws.com", environment.region);
    }
    return std::make_unique<WebIdentityCredentials>(environment, std::move(sts_endpoint), http);
  }
  return std::make_unique<ProfileCredentials>(environment.credentials_file, environment.profile);
}

}  // namespace recurve
