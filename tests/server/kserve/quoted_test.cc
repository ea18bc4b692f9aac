// Errors that quote a client, over gRPC: each text of each message, long, with control characters,
// or not UTF-8.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include <memory>
#include <string>
#include <vector>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/constraint/constraint_library.h"
#include "server/kserve/kserve_service.h"
#include "server/session/state_transfer.h"
#include "server/text/chat/chat_template.h"
#include "tests/support/hostile_text.h"
#include "tests/support/rpc_fixture.h"

namespace recurve::kserve_quoted_test {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using nlohmann::json;

using Owned = std::unique_ptr<Message>;

Owned copy_of(const Message& message) {
  Owned copy(message.New());
  copy->CopyFrom(message);
  return copy;
}

Owned new_message(const Descriptor* type) {
  return Owned(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

// A valid value for a field, where it needs one for the rest of the message to be read.
const std::multimap<std::string, std::string> kGood = {
    {"recurve.v1.GenerateRequest", "text: 'p'"},
    {"recurve.v1.GenerateRequest", "text: 'p' session: 's'"},
    {"recurve.v1.GenerateRequest", "messages { messages { role: 'user' content: 'c' } }"},
    {"recurve.v1.GenerateRequest",
     "messages { messages { role: 'user' content: 'c' } tools_json: '[{\"type\":\"function\","
     "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]' } tool_use { }"},
    {"recurve.v1.Messages.Message", "role: 'user' content: 'c'"},
    {"recurve.v1.TokenizeRequest", "messages { messages { role: 'user' content: 'c' } }"},
    {"recurve.v1.ScoreRequest", "text: 'p'"},
    {"recurve.v1.ForkSessionRequest", "name: 's'"},
    {"recurve.v1.MarkSessionRequest", "name: 's'"},
    {"recurve.v1.UnmarkSessionRequest", "name: 's' mark: 'm'"},
    {"recurve.v1.RewindSessionRequest", "name: 's' mark: 'm'"},
    {"inference.ModelInferRequest",
     "model_name: 'fake' inputs { name: 'text_input' datatype: 'BYTES' shape: 1 contents { "
     "bytes_contents: 'p' } }"},
    {"inference.ModelInferRequest.InferInputTensor",
     "name: 'sampling_parameters' datatype: 'BYTES' shape: 1 contents { bytes_contents: '{}' }"},
    {"inference.ModelReadyRequest", "name: 'fake'"},
    {"inference.ModelMetadataRequest", "name: 'fake'"},
    {"inference.ModelConfigRequest", "name: 'fake'"},
};

std::vector<Owned> good_ones(const Descriptor* type) {
  std::vector<Owned> all;
  const auto [first, last] = kGood.equal_range(type->full_name());
  for (auto it = first; it != last; ++it) {
    all.push_back(new_message(type));
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(it->second, all.back().get()));
  }
  if (all.empty()) all.push_back(new_message(type));
  return all;
}

struct Mutant {
  std::string where;
  Owned message;
};

void set_text(const FieldDescriptor* field, const std::string& text, Message* of) {
  const auto* reflection = of->GetReflection();
  if (field->is_repeated()) {
    reflection->ClearField(of, field);
    reflection->AddString(of, field, text);
  } else {
    reflection->SetString(of, field, text);
  }
}

std::vector<Mutant> mutants_of(const Message& good, const std::string& text, int levels = 5);

// With one of the messages of the field changed.
void change_within(const Message& good, const FieldDescriptor* field, const std::string& text,
                   int levels, std::vector<Mutant>* all) {
  const auto* reflection = good.GetReflection();
  std::vector<Owned> within = good_ones(field->message_type());
  if (field->is_repeated() && reflection->FieldSize(good, field) > 0) {
    within.push_back(copy_of(reflection->GetRepeatedMessage(good, field, 0)));
  } else if (!field->is_repeated() && reflection->HasField(good, field)) {
    within.push_back(copy_of(reflection->GetMessage(good, field)));
  }
  for (const Owned& one : within) {
    for (const Mutant& changed : mutants_of(*one, text, levels - 1)) {
      for (const bool alone : {true, false}) {
        if (!field->is_repeated() && !alone) continue;
        Owned copy = copy_of(good);
        if (alone) reflection->ClearField(copy.get(), field);
        Message* to = field->is_repeated() ? reflection->AddMessage(copy.get(), field)
                                           : reflection->MutableMessage(copy.get(), field);
        to->CopyFrom(*changed.message);
        all->push_back({field->name() + "." + changed.where, std::move(copy)});
      }
    }
  }
}

std::vector<Mutant> mutants_of(const Message& good, const std::string& text, int levels) {
  std::vector<Mutant> all;
  const Descriptor* type = good.GetDescriptor();
  for (int f = 0; f < type->field_count() && levels > 0; ++f) {
    const FieldDescriptor* field = type->field(f);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      Owned copy = copy_of(good);
      set_text(field, text, copy.get());
      all.push_back({field->name(), std::move(copy)});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      change_within(good, field, text, levels, &all);
    }
  }
  return all;
}

class QuotedTest : public RpcFixture {
 protected:
  void SetUp() override {
    services_ = {kserve_service()};
    const char* written =
        "{% for m in messages %}{% if m.role != 'other' %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
        "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% else %}"
        "{{ raise_exception('not this: ' + m.content) }}{% endif %}{% endfor %}";
    chat_ = {
        .format = std::make_shared<const ChatTemplate>(written, "", jinja::Template::Variables{}),
        .exists = true,
        .tool_form = tool_form_of(written),
        .problem = ""};
    ServingInfo info = fake_info();
    info.most_written_bytes = 1 << 20;
    info.read_state = state_reader({});
    start({}, {}, 64, std::move(info));
    engine_->answer_sessions({.sessions = {{.name = "s"}}});
    v1::OpenSessionRequest open;
    open.set_name("s");
    grpc::ClientContext context;
    v1::Session session;
    ASSERT_TRUE(sessions_->Open(&context, open, &session).ok());
    EXPECT_TRUE(generate(text_request("p")).status.ok());
    visitor_ = engine_->last_request().caller.visitor;
    EXPECT_NE(visitor_, 0u);
  }
  void TearDown() override {
    EXPECT_TRUE(generate(text_request("still here")).status.ok());
    EXPECT_EQ(engine_->last_request().caller.visitor, visitor_) << "of another connection";
    RpcFixture::TearDown();
  }

  // Sends bytes as the only message to any method. Calls `on_answer` for each response.
  grpc::Status call(const std::string& path, const std::string& bytes,
                    const std::function<void(const std::string&)>& on_answer) {
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING);
    grpc::ClientContext context;
    const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), rpc, &context));
    stream->Write(to_buffer(bytes));
    stream->WritesDone();
    grpc::ByteBuffer answer;
    while (stream->Read(&answer)) on_answer(to_string(answer));
    return stream->Finish();
  }

  void expect_readable_of(const MethodDescriptor& method, const Message& request,
                          const std::string& what) {
    const std::string path = "/" + method.service()->full_name() + "/" + method.name();
    const auto on_answer = [&](const std::string& answer) {
      inference::ModelStreamInferResponse response;
      if (method.output_type() != response.GetDescriptor()) return;
      EXPECT_TRUE(response.ParseFromString(answer)) << path << " " << what;
      expect_readable(response.error_message(), path + " " + what);
      refused_ += response.error_message().empty() ? 0 : 1;
    };
    const grpc::Status status = call(path, request.SerializePartialAsString(), on_answer);
    refused_ += status.ok() ? 0 : 1;
    expect_readable(status.error_message(), path + " " + what);
    EXPECT_EQ(status.error_message().find("Stream removed"), std::string::npos)
        << path << " " << what;
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << path << " " << what;
    EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << path << " " << what;
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNKNOWN) << path << " " << what;
  }

  static std::vector<const MethodDescriptor*> methods() {
    std::vector<const MethodDescriptor*> all;
    for (const char* name : {"recurve.v1.Inference", "recurve.v1.Sessions", "recurve.v1.Control",
                             "inference.GRPCInferenceService"}) {
      const auto* service = DescriptorPool::generated_pool()->FindServiceByName(name);
      EXPECT_NE(service, nullptr) << name;
      for (int m = 0; service != nullptr && m < service->method_count(); ++m) {
        all.push_back(service->method(m));
      }
    }
    return all;
  }

  TenantId visitor_ = 0;  // the connection
  int refused_ = 0;
};

TEST_F(QuotedTest, EachTextOfEachMessage) {
  std::vector<std::string> texts = hostile_texts();
  texts.push_back(kNoText);
  for (const MethodDescriptor* method : methods()) {
    for (const Owned& good : good_ones(method->input_type())) {
      for (const std::string& text : texts) {
        for (const Mutant& mutant : mutants_of(*good, text)) {
          expect_readable_of(*method, *mutant.message, mutant.where);
        }
      }
    }
  }
  EXPECT_GT(refused_, 500);
}

// A client's text in JSON and other forms within a message: long, and as long as fits.
class QuotedWithinTest : public QuotedTest {
 protected:
  using QuotedTest::expect_readable_of;
  void expect_readable_of(const v1::GenerateRequest& request, const std::string& what) {
    const auto* pool = DescriptorPool::generated_pool();
    QuotedTest::expect_readable_of(*pool->FindMethodByName("recurve.v1.Inference.Generate"),
                                   request, what);
  }
  static v1::GenerateRequest good() {
    v1::GenerateRequest request = text_request("p");
    request.mutable_stop()->set_max_tokens(1);
    return request;
  }
  static std::vector<std::string> texts() {
    std::vector<std::string> all = hostile_texts();
    for (std::string& small : hostile_texts(300)) all.push_back(std::move(small));
    return all;
  }
};

TEST_F(QuotedWithinTest, Constraints) {
  for (const std::string& text : texts()) {
    v1::GenerateRequest request = good();
    for (const json& schema : changed_somewhere(kSchema, text)) {
      request.mutable_constraint()->set_json_schema(schema.dump());
      expect_readable_of(request, "schema");
    }
    for (const json& tags : changed_somewhere(kTags, text)) {
      request.mutable_constraint()->set_structural_tag(tags.dump());
      expect_readable_of(request, "structural tag");
    }
    for (const std::string& grammar : grammars_with(text)) {
      request.mutable_constraint()->set_grammar(grammar);
      expect_readable_of(request, "grammar");
    }
    for (const std::string& regex : regexes_with(text)) {
      request.mutable_constraint()->set_regex(regex);
      expect_readable_of(request, "regex");
    }
  }
  EXPECT_GT(refused_, has_constraint_library() ? 500 : 50);
}

TEST_F(QuotedWithinTest, Messages) {
  for (const std::string& text : texts()) {
    v1::GenerateRequest request = good();
    auto& messages = *request.mutable_messages();
    messages.add_messages()->set_role("user");
    request.mutable_tool_use()->set_required(true);
    for (const json& tools : changed_somewhere(kTools, text)) {
      messages.set_tools_json(tools.dump());
      expect_readable_of(request, "tools");
    }
    messages.set_tools_json(kTools.dump());
    request.mutable_tool_use()->set_function(text);
    expect_readable_of(request, "function");
    request.clear_tool_use();
    messages.clear_tools_json();
    for (const std::string& odd : {"{\"" + text, "{\"" + text + "\":" + text, "[" + text}) {
      messages.set_variables_json(odd);
      expect_readable_of(request, "variables");
      messages.mutable_messages(0)->set_fields_json(odd);
      expect_readable_of(request, "fields");
      messages.mutable_messages(0)->clear_fields_json();
    }
    messages.clear_variables_json();
    messages.mutable_messages(0)->set_role("other");
    messages.mutable_messages(0)->set_content(text);
    expect_readable_of(request, "what a template raises");
  }
  EXPECT_GT(refused_, 100);
}

// Parameters of the request and of the tensor: known, refused and unknown ones.
TEST_F(QuotedWithinTest, InferParameters) {
  const json good = {{"temperature", 1},      {"logit_bias", {{"1", 1}}}, {"stop", {"s"}},
                     {"stop_token_ids", {1}}, {"guided_json", kSchema},   {"guided_choice", {"c"}},
                     {"ignore_eos", true},    {"bad_words", {"b"}},       {"n", 1},
                     {"any_whitespace", true}};
  const auto* pool = DescriptorPool::generated_pool();
  const auto* infer = pool->FindMethodByName("inference.GRPCInferenceService.ModelInfer");
  for (const std::string& text : texts()) {
    std::vector<json> all;
    for (const auto& [name, value] : good.items()) {
      for (json& changed : changed_somewhere({{name, value}}, text)) all.push_back(changed);
    }
    for (const json& changed : all) {
      inference::ModelInferRequest request;
      request.set_model_name("fake");
      for (const auto& [name, content] : {std::pair("text_input", std::string("p")),
                                          std::pair("sampling_parameters", changed.dump())}) {
        auto& tensor = *request.add_inputs();
        tensor.set_name(name);
        tensor.set_datatype("BYTES");
        tensor.add_shape(1);
        tensor.mutable_contents()->add_bytes_contents(content);
      }
      expect_readable_of(*infer, request, "sampling_parameters");
      request.mutable_inputs()->RemoveLast();
      if (!changed.is_object()) continue;
      for (const auto& [name, value] : changed.items()) {
        (*request.mutable_parameters())[name].set_string_param(
            value.is_string() ? value.get<std::string>() : value.dump());
      }
      expect_readable_of(*infer, request, "parameters");
    }
  }
  EXPECT_GT(refused_, 100);
}

}  // namespace recurve::kserve_quoted_test
