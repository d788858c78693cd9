// Python's operators on numbers, texts and lists.
#include <fmt/format.h>

#include <cmath>

#include "chat/runtime.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

[[noreturn]] void too_large() { throw InputError("a number grows too large"); }

const char* sign_of(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::subtract:
      return "-";
    case Op::multiply:
      return "*";
    case Op::divide:
      return "/";
    case Op::floor_divide:
      return "//";
    case Op::modulo:
      return "%";
    default:
      return "**";
  }
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (a == INT64_MIN && b == -1) too_large();
  const std::int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

double python_modulo(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  return r == 0 ? std::copysign(0.0, b) : r;
}

Value whole_numbers(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::floor_divide:
      return floor_divide(a, b);
    case Op::modulo:
      if (b == -1) return std::int64_t{0};
      result = a % b;
      if (result != 0 && (result < 0) != (b < 0)) result += b;
      return result;
    default:
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      if (b > 62 && a != 0 && a != 1 && a != -1) too_large();
      result = 1;
      if (a == -1) return b % 2 == 0 ? std::int64_t{1} : std::int64_t{-1};
      if (a == 0 || a == 1) return b == 0 ? std::int64_t{1} : a;
      for (std::int64_t i = 0; i < b; ++i)
        overflow = __builtin_mul_overflow(result, a, &result) || overflow;
  }
  if (overflow) too_large();
  return result;
}

Value repeated(Runtime& runtime, const Value& what, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (const std::string* text = what.string()) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(times, static_cast<std::int64_t>(text->size()), &bytes) ||
        bytes > (std::int64_t{16} << 20))
      throw InputError("a text grows beyond 16 MiB");
    std::string out;
    for (std::int64_t i = 0; bytes > 0 && i < times; ++i) out += *text;
    return runtime.made(std::move(out));
  }
  const ListData& list = *what.items();
  std::int64_t count = 0;
  if (__builtin_mul_overflow(times, std::ssize(list.items), &count) || count > 1'000'000)
    throw InputError("a list grows beyond a million items");
  std::vector<Value> out;
  for (std::int64_t i = 0; count > 0 && i < times; ++i)
    out.insert(out.end(), list.items.begin(), list.items.end());
  return runtime.made(std::move(out), list.tuple);
}

}  // namespace

Value arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool divides = op == Op::divide || op == Op::floor_divide || op == Op::modulo;
    if (divides && b.real() == 0) throw InputError("division by zero");
    if (!a.is_real() && !b.is_real() && op != Op::divide)
      return whole_numbers(op, a.integer(), b.integer());
    const double x = a.real(), y = b.real();
    switch (op) {
      case Op::add:
        return x + y;
      case Op::subtract:
        return x - y;
      case Op::multiply:
        return x * y;
      case Op::divide:
        return x / y;
      case Op::floor_divide:
        return std::floor(x / y);
      case Op::modulo:
        return python_modulo(x, y);
      default:
        return std::pow(x, y);
    }
  }
  if (op == Op::add && a.is_string() && b.is_string())
    return runtime.made(*a.string() + *b.string());
  if (op == Op::add && a.is_list() && b.is_list() && a.items()->tuple == b.items()->tuple) {
    std::vector<Value> out = a.items()->items;
    out.insert(out.end(), b.items()->items.begin(), b.items()->items.end());
    return runtime.made(std::move(out), a.items()->tuple);
  }
  const auto repeatable = [](const Value& x) { return x.is_string() || x.is_list(); };
  if (op == Op::multiply && repeatable(a) && b.is_number() && !b.is_real())
    return repeated(runtime, a, b.integer());
  if (op == Op::multiply && repeatable(b) && a.is_number() && !a.is_real())
    return repeated(runtime, b, a.integer());
  if (op == Op::modulo && a.is_string())
    return runtime.made(printf_format(runtime, *a.string(), b));
  throw InputError(
      fmt::format("{} {} {} is not defined", a.type_name(), sign_of(op), b.type_name()));
}

std::string printf_format(Runtime& runtime, const std::string& format, const Value& values) {
  std::vector<Value> list;
  if (values.is_list() && values.items()->tuple) {
    list = values.items()->items;
  } else {
    list.push_back(values);
  }
  std::string out;
  std::size_t used = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const char kind = i + 1 < format.size() ? format[++i] : ' ';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (used >= list.size()) throw InputError("too few values for a format");
    const Value& value = list[used++];
    if (kind == 's') {
      out += value.text();
    } else if (kind == 'r') {
      out += value.repr();
    } else if (kind == 'd' && value.is_number()) {
      out += std::to_string(value.is_real() ? static_cast<std::int64_t>(value.real())
                                            : value.integer());
    } else {
      throw InputError(fmt::format("the format %{} is not supported here", kind));
    }
    runtime.spend(1);
  }
  if (used != list.size()) throw InputError("too many values for a format");
  return out;
}

}  // namespace unpack::chat
