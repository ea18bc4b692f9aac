#include "server/startup/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "server/startup/model_list.h"

namespace recurve::options_test {

using ::testing::HasSubstr;

struct Parsed {
  int status;
  Options options;
  std::string said;  // on standard error
};

Parsed parse(std::vector<std::string> flags, std::vector<std::string> model = {"--model", "m"}) {
  flags.insert(flags.begin(), model.begin(), model.end());
  flags.insert(flags.begin(), "recurve-server");
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  Parsed parsed{};
  ::testing::internal::CaptureStderr();
  parsed.status = parse_options(static_cast<int>(argv.size()), argv.data(), &parsed.options);
  parsed.said = ::testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(OptionsTest, AMessageSizeThatGrpcCannotCountIsRefused) {
  EXPECT_EQ(parse({"--max-message-bytes", "64MB"}).options.max_message_bytes, 64u << 20);
  EXPECT_EQ(parse({"--max-message-bytes", "2147483647"}).status, -1);
  for (const char* size : {"2GiB", "2147483648", "4GiB"}) {
    const Parsed parsed = parse({"--max-message-bytes", size});
    EXPECT_EQ(parsed.status, 2) << size;
    EXPECT_THAT(parsed.said, HasSubstr("--max-message-bytes"));
    EXPECT_THAT(parsed.said, HasSubstr("2147483647"));
  }
}

TEST(OptionsTest, SwitchesAreOnOrOff) {
  EXPECT_TRUE(parse({}).options.reflection);
  EXPECT_FALSE(parse({}).options.request_compression);
  EXPECT_FALSE(parse({"--reflection", "off"}).options.reflection);
  EXPECT_TRUE(parse({"--request-compression", "on"}).options.request_compression);
  EXPECT_EQ(parse({"--reflection", "perhaps"}).status, 2);
}

TEST(OptionsTest, ConnectionsAreANumberOrAuto) {
  EXPECT_EQ(parse({"--max-connections", "auto"}).options.max_connections, 0);
  EXPECT_EQ(parse({"--max-connections", "77"}).options.max_connections, 77);
  EXPECT_EQ(parse({"--max-connections-by-address", "7"}).options.max_connections_by_address, 7);
}

// A variable of the environment as long as this lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

std::string help() {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--help"}).status, 0);
  return ::testing::internal::GetCapturedStdout();
}

TEST(OptionsTest, TheEnvironmentSaysWhatTheCommandLineLeavesOpen) {
  const Variable queue("RECURVE_SERVER_MAX_QUEUE", "17");
  const Variable slots("RECURVE_SERVER_SLOTS", "auto");
  const Variable flag("RECURVE_SERVER_RANDOM_WEIGHTS", "true");
  const Variable list("RECURVE_SERVER_HTTP_ORIGIN", "a.example,b.example");
  const Variable empty("RECURVE_SERVER_DEVICE", "");
  const Options o = parse({}).options;
  EXPECT_EQ(o.max_queue, 17);
  EXPECT_EQ(o.slots, 0);
  EXPECT_TRUE(o.random_weights);
  EXPECT_THAT(o.http_origins, ::testing::ElementsAre("a.example", "b.example"));
  EXPECT_EQ(o.device, "cpu");
  EXPECT_EQ(parse({"--max-queue", "3"}).options.max_queue, 3);
  EXPECT_EQ(parse({"--max-queue=4"}).options.max_queue, 4);
  EXPECT_FALSE(parse({"--random-weights=false"}).options.random_weights);
}

TEST(OptionsTest, ARequiredFlagMayStandInTheEnvironment) {
  const Variable model("RECURVE_SERVER_MODEL", "/models/it");
  const Parsed parsed = parse({}, {});
  EXPECT_EQ(parsed.status, -1);
  EXPECT_EQ(parsed.options.model, "/models/it");
}

TEST(OptionsTest, AModelNeedsNoFlag) {
  EXPECT_EQ(parse({"--slots", "2"}, {"m"}).options.model, "m");
  EXPECT_EQ(parse({"m"}, {"--slots", "2"}).options.model, "m");
  for (const auto& both : {parse({"a"}), parse({}, {"a", "--model=b"})}) {
    EXPECT_EQ(both.status, 2);
    EXPECT_THAT(both.said, HasSubstr("two models are given"));
  }
  EXPECT_THAT(parse({}, {}).said, HasSubstr("MODEL_DIR is required"));
  const Variable variable("RECURVE_SERVER_MODEL", "/models/it");
  EXPECT_EQ(parse({}, {"m"}).options.model, "m") << "the command line is stronger";
}

std::vector<std::string> models_of(const Parsed& parsed) {
  std::vector<std::string> models;
  for (const ModelPath& model : parsed.options.models)
    models.push_back(model.name + "|" + model.path);
  return models;
}

TEST(OptionsTest, SeveralModelsHaveNames) {
  using ::testing::ElementsAre;
  EXPECT_THAT(models_of(parse({}, {"m"})), ElementsAre("|m"));
  EXPECT_THAT(models_of(parse({}, {"a=b"})), ElementsAre("|a=b")) << "MODEL_DIR is a path";
  EXPECT_THAT(models_of(parse({}, {"--model", "a=/m/x", "--model", "b=/m/y"})),
              ElementsAre("a|/m/x", "b|/m/y"));
  EXPECT_THAT(models_of(parse({}, {"--model", "a=/m/x,/m/y"})), ElementsAre("a|/m/x", "|/m/y"));
  EXPECT_THAT(models_of(parse({"--model=b=/m/y"}, {"/m/x"})), ElementsAre("|/m/x", "b|/m/y"));
  const Variable variable("RECURVE_SERVER_MODEL", "a=/m/x,b=/m/y");
  EXPECT_THAT(models_of(parse({}, {})), ElementsAre("a|/m/x", "b|/m/y"));
  EXPECT_THAT(models_of(parse({}, {"m"})), ElementsAre("|m"));
}

TEST(OptionsTest, PathsOfModelsMayHaveCommasAndEqualsSigns) {
  using ::testing::ElementsAre;
  const auto read = [](const std::string& text) { return models_of(parse({}, {"--model", text})); };
  EXPECT_THAT(read("a=/m/x=1"), ElementsAre("a|/m/x=1"));
  EXPECT_THAT(read("/m/x=1"), ElementsAre("|/m/x=1"));
  EXPECT_THAT(read("./x=1"), ElementsAre("|./x=1"));
  EXPECT_THAT(read(R"(x\=1)"), ElementsAre("|x=1"));
  EXPECT_THAT(read(R"(a=x\=1)"), ElementsAre("a|x=1"));
  EXPECT_THAT(read(R"(a=/m/x\,y,b=/m/z\\)"), ElementsAre("a|/m/x,y", R"(b|/m/z\)"));
  for (const char* wrong : {"a=", "a=/m,", ",a=/m", "a=/m,,b=/n"}) {
    EXPECT_THAT(parse({}, {"--model", wrong}).said,
                HasSubstr("--model must be DIR or NAME=DIR, several separated by commas"))
        << wrong;
  }
}

TEST(OptionsTest, NamesOfModelsDiffer) {
  for (const auto& alike :
       {parse({}, {"--model", "a=/m/x,a=/m/y"}), parse({"--model=x=/m/y"}, {"/m/x"}),
        parse({"--name=b", "--model=b=/m/y"}, {"/m/x"})}) {
    EXPECT_EQ(alike.status, 2);
    EXPECT_THAT(alike.said, HasSubstr("two models have the name"));
  }
  EXPECT_THAT(parse({"--name", "b"}, {"--model", "a=/m/x"}).said,
              HasSubstr("--name b is for a model without a name"));
}

TEST(OptionsTest, ModelsShareWhatTheFlagsLimit) {
  const Parsed parsed = parse(
      {"--session-memory", "4GiB", "--state-disk", "8GiB", "--state-dir", "/s", "--slots", "3"},
      {"/m/x", "--model=b=/m/y"});
  const std::vector<Options> models = options_of_models(parsed.options);
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(names_of_models(parsed.options), (std::vector<std::string>{"x", "b"}));
  for (const Options& model : models) {
    EXPECT_EQ(model.session_memory, uint64_t{2} << 30);
    EXPECT_EQ(model.state_disk, uint64_t{4} << 30);
    EXPECT_EQ(model.prefix_memory, kAutomatic);
    EXPECT_EQ(model.slots, 3);
  }
  EXPECT_EQ(models[0].state_dir, "/s") << "as if it were alone";
  EXPECT_EQ(models[1].state_dir, "/s/model-b");
}

// Who chooses where gRPC is reached, as units, charts and sockets with their own rights do, gets no
// port that was not named.
TEST(OptionsTest, HttpIsOnLoopbackUnlessAnAddressIsChosen) {
  EXPECT_EQ(parse({}).options.listen, "127.0.0.1:50051");
  EXPECT_EQ(parse({}).options.http, "127.0.0.1:8000");
  EXPECT_EQ(parse({"--http", "none"}).options.http, "");
  EXPECT_EQ(parse({"--http", "127.0.0.1:1"}).options.http, "127.0.0.1:1");
  EXPECT_EQ(parse({"--listen", "unix:s"}).options.http, "");
  EXPECT_EQ(parse({"--listen", "unix:s", "--http", "127.0.0.1:1"}).options.http, "127.0.0.1:1");
  const Variable listen("RECURVE_SERVER_LISTEN", "unix:s");
  EXPECT_EQ(parse({}).options.http, "");
}

TEST(OptionsTest, WhatTheEnvironmentSaysIsCheckedAsFlagsAre) {
  const Variable slots("RECURVE_SERVER_SLOTS", "many");
  const Parsed parsed = parse({});
  EXPECT_EQ(parsed.status, 2);
  EXPECT_THAT(parsed.said, HasSubstr("--slots"));
  EXPECT_THAT(parsed.said, HasSubstr("RECURVE_SERVER_SLOTS"));
}

TEST(OptionsTest, AVariableOfNoFlagIsRefused) {
  const Variable typo("RECURVE_SERVER_SLOT", "4");
  const Parsed parsed = parse({});
  EXPECT_EQ(parsed.status, 2);
  EXPECT_THAT(parsed.said, HasSubstr("RECURVE_SERVER_SLOT: no flag has this variable"));
}

TEST(OptionsTest, WhatKubernetesMakesOfAServicesNameIsNoFlag) {
  const Variable port("RECURVE_SERVER_PORT", "tcp://10.0.0.1:50051");
  const Variable host("RECURVE_SERVER_SERVICE_HOST", "10.0.0.1");
  const Variable tcp("RECURVE_SERVER_PORT_50051_TCP_ADDR", "10.0.0.1");
  EXPECT_EQ(parse({}).status, -1);
  EXPECT_THAT(help(), ::testing::Not(HasSubstr("RECURVE_SERVER_PORT")))
      << "a flag of that name could not be told from Kubernetes' variables";
}

// How the help says a flag's kind and default: that depends on CLI11's version.
auto says(const std::string& flag, const std::string& otherwise) {
  return ::testing::AnyOf(HasSubstr(flag + "=" + otherwise + " "),
                          HasSubstr(flag + " [" + otherwise + "] "));
}

TEST(OptionsTest, ValuesThatHaveNamesAreSaidByThem) {
  EXPECT_THAT(help(), says("--activations TEXT:{bf16,f32,int8}", "f32"));
  EXPECT_THAT(help(), says("--state TEXT:{bf16,f32}", "f32"));
  for (const char letter : help()) ASSERT_TRUE(letter == '\n' || letter < 0 || letter >= ' ');
  const auto refused = parse({"--state", "int8"});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.said, HasSubstr("--state: wanted one of {bf16,f32}, found int8"));
  EXPECT_THAT(parse({"--state", "1"}).said, HasSubstr("wanted one of {bf16,f32}, found 1"));
}

TEST(OptionsTest, WhatMayBeAutoSaysSo) {
  for (const char* flag : {"--slots INT", "--rows-per-step INT", "--max-connections INT",
                           "--max-connections-by-address INT", "--session-memory SIZE",
                           "--prefix-memory SIZE", "--state-disk SIZE"}) {
    EXPECT_THAT(help(), says(std::string(flag) + "|auto", "auto"));
  }
  for (const char* wrong : {"many", "-1", "1048577"}) {
    EXPECT_THAT(parse({"--slots", wrong}).said,
                HasSubstr("--slots: wanted auto or an integer in [0, 1048576], found " +
                          std::string(wrong)));
  }
  for (const std::string wrong : {"much", "4XB", "-4"}) {
    EXPECT_THAT(parse({"--state-disk", wrong}).said,
                HasSubstr("--state-disk: wanted auto or a size such as 4GB, found " + wrong));
  }
}

TEST(OptionsTest, HelpNamesEachFlagsVariable) {
  const std::string text = help();
  size_t flags = 0, variables = 0;
  for (size_t at = 0; (at = text.find("\n  --", at)) != std::string::npos; ++at) ++flags;
  for (size_t at = 0; (at = text.find("Env:RECURVE_SERVER_", at)) != std::string::npos; ++at) {
    ++variables;
  }
  EXPECT_GT(flags, 30u);
  EXPECT_EQ(variables, flags) << "--help and --version have a short form";
}

}  // namespace recurve::options_test
