// Runs the tree of a chat template.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/syntax.h"
#include "chat/value.h"

namespace unpack::chat {

// What a template may use before it is stopped.
struct Limits {
  std::int64_t steps = 4'000'000;            // operations; long texts and lists count as many
  std::size_t text = std::size_t{16} << 20;  // bytes of any one text, the output included
  int depth = 700;                           // calls, blocks and operators inside each other
};

struct Scope {
  std::map<std::string, Value, std::less<>> names;
  std::shared_ptr<Scope> outer;

  const Value* find(std::string_view name) const;
};
using ScopePtr = std::shared_ptr<Scope>;

// Bytes of a text that count as one step.
inline constexpr std::int64_t kBytesPerStep = 32;

// Throws InputError that says what was not defined.
void refuse_undefined(const Value& value);

class Runtime {
 public:
  Runtime(const Limits& limits, std::tm now);

  std::string render(const Body& body, const MapData& variables);

  // For filters, tests and methods.
  void spend(std::int64_t steps);
  Value made(std::string text);  // charges for it
  Value made(std::vector<Value> items, bool tuple = false);
  Value call(const Value& function, const Arguments& arguments);
  Value filter(const std::string& name, const Arguments& arguments);
  bool test(const std::string& name, const Arguments& arguments);
  std::vector<Value> iterate(const Value& value);
  Value attribute(const Value& value, const std::string& name);  // value.name
  Value item(const Value& value, const Value& key);              // value[key]
  const std::tm& now() const { return now_; }

 private:
  enum class Flow { on, leave, next };
  // One level more of calls and blocks while it lives; throws InputError beyond the limit.
  class Deeper {
   public:
    explicit Deeper(Runtime& runtime);
    ~Deeper() { --runtime_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Runtime& runtime_;
  };

  Value eval(const Expr& expr, const ScopePtr& scope);
  Value eval_name(const Expr& expr, const Scope& scope) const;
  Value eval_collection(const Expr& expr, const ScopePtr& scope);
  Value eval_slice(const Expr& expr, const ScopePtr& scope);
  Value eval_call(const Expr& expr, const ScopePtr& scope);
  Value eval_number(const Expr& expr, const ScopePtr& scope);
  Value eval_compare(const Expr& expr, const ScopePtr& scope);
  Value eval_concat(const Expr& expr, const ScopePtr& scope);
  Arguments arguments(const Expr& expr, std::size_t first, const ScopePtr& scope);

  Flow run(const Body& body, const ScopePtr& scope, std::string& out);
  Flow run(const Node& node, const ScopePtr& scope, std::string& out);
  void loop_over(const Node& node, const ScopePtr& scope, const Value& over, int depth,
                 std::string& out);
  void assign(const Expr& target, Value value, Scope& scope);
  void write(std::string_view text, std::string& out);
  std::string captured(const Body& body, const ScopePtr& scope);
  Value macro(const Node& node, const ScopePtr& scope, bool is_caller);
  Value through_filters(const Expr& filters, const ScopePtr& scope, Value inner);

  Limits limits_;
  std::int64_t left_;
  int depth_ = 0;
  std::tm now_;
};

// Registered by name; nullptr where there is none. A filter and a test get their value as the first
// argument.
const Native* find_filter(std::string_view name);
const Native* find_test(std::string_view name);
const std::map<std::string, Value, std::less<>>& global_functions();
// A method of a str, list or dict bound to it; undefined where there is none.
Value find_method(const Value& self, const std::string& name);
Value arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b);
std::string printf_format(Runtime& runtime, const std::string& format, const Value& values);

}  // namespace unpack::chat
