#include "server/startup/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/startup/model_list.h"
#include "tests/support/temp_dir.h"

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

TEST(OptionsTest, StatesOfPromptsAreSharedInAStoreAlone) {
  EXPECT_EQ(parse({"--state-store", "s3://b/p"}).options.prefix_store, 0u);
  const Parsed shared = parse({"--state-store", "s3://b/p", "--prefix-store", "100GiB"});
  EXPECT_EQ(shared.options.prefix_store, uint64_t{100} << 30);
  const Parsed alone = parse({"--prefix-store", "1GB"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.said, HasSubstr("--prefix-store requires --state-store"));
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
  for (const ModelEntry& model : parsed.options.models)
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

// A folder with two empty checkpoints and a file of models.
class ModelsFileTest : public ::testing::Test {
 protected:
  ModelsFileTest() {
    for (const char* name : {"x", "y"}) std::filesystem::create_directory(folder_ / name);
  }
  Parsed parse_file(const std::string& text, std::vector<std::string> others = {}) const {
    std::ofstream(file_, std::ios::binary) << text;
    others.insert(others.end(), {"--models", file_});
    return parse({}, others);
  }
  std::string refusal_of(const std::string& text) const {
    const Parsed parsed = parse_file(text);
    EXPECT_EQ(parsed.status, 2) << text;
    const std::string begin = "recurve-server: --models " + file_;
    EXPECT_THAT(parsed.said, ::testing::StartsWith(begin));
    return parsed.said.substr(std::min(parsed.said.size(), begin.size()));
  }

  std::string path_of(const std::string& name) const { return folder_ / name; }

  const TempDir folder_;
  const std::string file_ = path_of("models.toml");
};

TEST_F(ModelsFileTest, EachModelHasWhatItsTableSays) {
  const Parsed parsed = parse_file(
      "# in the order of the file\n"
      "[z]\npath = \"x\"\nslots = 3\nweights = \"int8\"\ndevice = \"reference\"\n"
      "session_memory = \"1GiB\"\nmap_weights = \"off\"\n"
      "['b.1']\npath = '" +
          path_of("y") +
          "'\nkv_memory = 4096\nslots = 'auto'\n"
          "[c]\npath = \"y\"\n",
      {"--session-memory", "4GiB", "--slots", "5", "--device", "cuda:1", "--state-dir", "/s"});
  ASSERT_EQ(parsed.status, -1) << parsed.said;
  EXPECT_EQ(names_of_models(parsed.options), (std::vector<std::string>{"z", "b.1", "c"}));
  const std::vector<Options> models = options_of_models(parsed.options);
  EXPECT_EQ(models[0].model, path_of("x")) << "relative to the folder of the file";
  EXPECT_EQ(models[1].model, path_of("y"));
  EXPECT_EQ(models[0].slots, 3);
  EXPECT_EQ(models[1].slots, 0);
  EXPECT_EQ(models[2].slots, 5);
  EXPECT_EQ(models[0].weights, "int8");
  EXPECT_EQ(models[1].weights, "auto");
  EXPECT_EQ(models[0].map_weights, MapWeights::kOff);
  EXPECT_EQ(models[1].map_weights, MapWeights::kAuto);
  EXPECT_FALSE(models[0].on_gpu());
  EXPECT_TRUE(models[1].on_gpu());
  EXPECT_EQ(models[0].session_memory, uint64_t{1} << 30);
  EXPECT_EQ(models[1].session_memory, uint64_t{2} << 30) << "the others share the flag";
  EXPECT_EQ(models[2].session_memory, uint64_t{2} << 30);
  EXPECT_EQ(models[1].kv_memory, 4096u);
  EXPECT_EQ(models[2].kv_memory, kAutomatic);
  EXPECT_EQ(models[2].state_dir, "/s/model-c");
}

TEST_F(ModelsFileTest, AdaptersAndInitialStatesAreThoseOfTheirModels) {
  const Parsed parsed = parse_file(
      "[a]\npath = 'x'\nadapters = { law = 'y', 'tax.v2' = 'y' }\n"
      "[b]\npath = 'x'\nadapters = { law = 'x' }\ninitial_states = { tale = 'y' }\n",
      {"--adapter", "b:more=/m,one=/n", "--initial-state", "a:two=/o"});
  ASSERT_EQ(parsed.status, -1) << parsed.said;
  const std::vector<Options> models = options_of_models(parsed.options);
  const auto text = [](const std::vector<NamedPath>& all) {
    std::string text;
    for (const NamedPath& one : all) text += one.name + "=" + one.path + " ";
    return text;
  };
  EXPECT_EQ(text(models[0].adapters),
            "one=/n law=" + path_of("y") + " tax.v2=" + path_of("y") + " ");
  EXPECT_EQ(text(models[0].initial_states), "two=/o ");
  EXPECT_EQ(text(models[1].adapters), "more=/m law=" + path_of("x") + " ");
  EXPECT_EQ(text(models[1].initial_states), "tale=" + path_of("y") + " ");
  EXPECT_THAT(
      parse_file("[a]\npath = 'x'\nadapters = { law = 'y' }\n", {"--adapter", "law=/m"}).said,
      HasSubstr("two of --adapter have the name \"law\""));
}

TEST_F(ModelsFileTest, ItsModelsAreNextToThoseOfTheCommandLine) {
  using ::testing::ElementsAre;
  const std::string one = "[b]\npath = \"x\"\n";
  const std::string b = "b|" + path_of("x");
  EXPECT_THAT(models_of(parse_file(one)), ElementsAre(b));
  EXPECT_THAT(models_of(parse_file(one, {"m", "--model", "a=/m/a"})),
              ElementsAre("|m", "a|/m/a", b));
  EXPECT_THAT(parse_file(one, {"--model", "b=/m/b"}).said,
              HasSubstr("two models have the name \"b\""));
  const Variable model("RECURVE_SERVER_MODEL", "c=/m/c");
  EXPECT_THAT(models_of(parse_file(one)), ElementsAre(b)) << "the command line is stronger";
  const Variable models("RECURVE_SERVER_MODELS", file_);
  EXPECT_THAT(models_of(parse({}, {})), ElementsAre("c|/m/c", b));
  EXPECT_THAT(models_of(parse({}, {"m"})), ElementsAre("|m"));
}

TEST_F(ModelsFileTest, MistakesAreRefusedByNameAndLine) {
  const std::string begin = "[a]\npath = \"x\"\n";
  const std::string keys =
      "the keys are path, adapters, initial_states, device, weights, map_weights, slots, "
      "kv_memory, "
      "session_memory and prefix_memory";
  for (const auto& [text, sentence] : std::vector<std::pair<std::string, std::string>>{
           {begin + "slot = 4\n", ":3: model \"a\": unknown key slot: " + keys},
           {begin + "kv-memory = 4\n", ":3: model \"a\": unknown key kv-memory: " + keys},
           {begin + "help = 'x'\n", ":3: model \"a\": unknown key help: " + keys},
           {"[qwen3.5]\npath = \"x\"\n",
            ":1: model \"qwen3\": unknown key 5: " + keys + "; quote a name that has a dot"},
           {begin + "slots = true\n",
            ":3: model \"a\": slots: wanted a string or an integer, found a boolean"},
           {begin + "slots = 4.5\n", "found a floating-point number"},
           {begin + "slots = -1\n",
            ":3: model \"a\": slots: wanted auto or an integer in [0, 1048576], found -1"},
           {begin + "session_memory = 'much'\n",
            ":3: model \"a\": session_memory: wanted auto or a size such as 4GB, found much"},
           {begin + "weights = \"int7\"\n", ":3: model \"a\": weights: int7 not in {"},
           {begin + "map_weights = \"maybe\"\n",
            ":3: model \"a\": map_weights: wanted one of {auto,off,on}, found maybe"},
           {begin + "device = ''\n", ":3: model \"a\": device: "},
           {begin + "device = ['cpu']\n", "found an array"},
           {begin + "adapters = 'x'\n",
            ":3: model \"a\": adapters: wanted a table of names and paths, found a string"},
           {begin + "adapters = { b = 7 }\n",
            ":3: model \"a\": adapters: b: wanted a string, found an integer"},
           {begin + "adapters = { 'b/c' = 'x' }\n", "adapters: a name has 1 to 128 letters"},
           {begin + "initial_states = { b = 'none' }\n",
            ":3: model \"a\": initial_states: " + path_of("none") + " does not exist"},
           {"[a]\npath = 7\n", ":2: model \"a\": path: wanted a string, found an integer"},
           {"[a]\npath = 'none'\n", ":2: model \"a\": path: " + path_of("none") +
                                        " does not exist: give the directory of a checkpoint"},
           {"[a]\npath = ''\n", "does not exist"},
           {"\n[a]\nslots = 4\n",
            ":2: model \"a\": path is missing: the directory of a checkpoint"},
           {"slots = 4\n", ":1: model \"slots\": wanted a table [slots], found an integer"},
           {"['a/b']\npath = 'x'\n",
            ":1: model \"a/b\": a name has at most 128 letters, digits, '.', '_' and '-'"},
           {begin + begin, ":3: "},
           {begin + "path = \"y\"\n", ":3: "},
           {"[a\n", ":1: "},
           {"[a]\npath = \"\xff\"\n", ":2: "},
           {"", ": the file has no model: add a table [NAME] with path = \"DIR\""}}) {
    EXPECT_THAT(refusal_of(text), HasSubstr(sentence)) << text;
  }
  EXPECT_THAT(refusal_of("[a]\npath = 'x'\n" + std::string(100'000, 'k') + " = 1\n"),
              ::testing::SizeIs(::testing::Lt(500u)));
}

TEST_F(ModelsFileTest, AFileThatIsTooLargeOrCannotBeReadIsRefused) {
  std::string text = "[a]\npath = 'x'\n#";
  text.resize((size_t{1} << 20) - 1, '-');
  EXPECT_EQ(parse_file(text + "\n").status, -1);
  EXPECT_THAT(refusal_of(text + "-\n"), HasSubstr(": the file must have at most 1048576 bytes"));
  for (const char* name : {"none", "x"}) {
    EXPECT_THAT(parse({}, {"--models", path_of(name)}).said, HasSubstr(": cannot be read: "));
  }
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
