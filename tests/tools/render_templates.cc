// Renders chat templates for the comparison with python3-jinja2: a JSON object a line in
// ({"template", "variables"}), one out ({"text"} or {"error"}).
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "unpack/chat.h"
#include "unpack/error.h"

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    nlohmann::json answer;
    try {
      const auto request = nlohmann::ordered_json::parse(line);
      const auto chat_template =
          unpack::ChatTemplate::parse(request["template"].get<std::string>(), "template");
      answer["text"] = chat_template.render(request["variables"].dump());
    } catch (const unpack::InputError& e) {
      answer["error"] = e.what();
    }
    std::cout << answer.dump() << "\n";
  }
}
