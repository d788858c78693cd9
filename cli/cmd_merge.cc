#include <memory>

#include "arguments.h"
#include "commands.h"
#include "unpack/error.h"
#include "unpack/merge.h"

namespace unpack::cli {
namespace {

struct MergeArguments {
  std::vector<std::string> folders;
  std::string out = "merged";
  ModelArguments model;
};

void run(const MergeArguments& args, Context& context) {
  if (args.folders.empty()) throw UsageError("name the folders of the shards");
  print(merge_shards({args.folders.begin(), args.folders.end()}, args.out, args.model.options(),
                     context.run())
            .text);
}

}  // namespace

void add_merge(App& app, Context& context) {
  const auto args = std::make_shared<MergeArguments>();
  Command command = app.add(
      "merge", "Join the shards of a batch or an experiment into what one run would have written",
      "unpack merge part-* --out whole");
  command.list("FOLDER", "The folders of all shards, in any order", args->folders);
  command.option("--out", "FOLDER", "Where the files go (default merged)", args->out);
  args->model.add_device(command);
  command.run([args, &context] { run(*args, context); });
}

}  // namespace unpack::cli
