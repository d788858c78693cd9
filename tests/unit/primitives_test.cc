// A device needs the primitives alone: every operation has a body over them.
#include <gtest/gtest.h>

#include "backend/host/host_base.h"
#include "backend/kernels/list.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

// Primitives in single precision with plain products, and nothing else.
class PlainDevice final : public backend::HostPrimitives<float> {
 public:
  using HostPrimitives::HostPrimitives;
  std::string name() const override { return "plain"; }
  std::string details() const override { return "primitives alone"; }

 protected:
  void gemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
            std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
            std::int64_t ldc) override {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? c[i * ldc + j] : 0.0;
        for (std::int64_t p = 0; p < k; ++p)
          sum += a[i * lda + p] * (b_transposed ? b[j * ldb + p] : b[p * ldb + j]);
        c[i * ldc + j] = static_cast<float>(sum);
      }
    }
  }
};

LoadOptions on(const std::string& device) {
  LoadOptions options;
  options.device = device;
  options.threads = 1;
  return options;
}

Model on_plain_device(const std::string& config) {
  Model model = Model::random(config, 3, on("cpu"));
  auto& state = const_cast<engine::ModelState&>(*engine::state_of(model));
  backend::BackendOptions one_thread;
  one_thread.threads = 1;
  state.backend = std::make_shared<PlainDevice>(state.weights, one_thread);
  return model;
}

TraceResult trace_of(const Model& model, const Options& options) {
  Question question;
  question.options = options;
  question.paths.top = 5;
  question.target.ids = {1};
  return model.prepare(std::vector<TokenId>{3, 1, 4, 1, 5, 2, 6}).trace(question);
}

TEST(Primitives, AreAllThatADeviceNeeds) {
  Options paper, read;
  paper.scores = Scores::raw;
  read.direction = Direction::read;
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.window = 4;
    const Model plain = on_plain_device(shape.config()),
                cpu = Model::random(shape.config(), 3, on("cpu"));
    for (const Options& options : {paper, read}) {
      const TraceResult got = trace_of(plain, options), want = trace_of(cpu, options);
      EXPECT_LT(naive::difference(got.node_credit, want.node_credit), 1e-3) << family;
      EXPECT_LT(naive::difference(got.token_credit, want.token_credit), 1e-3) << family;
      ASSERT_EQ(got.paths.size(), want.paths.size()) << family;
      for (std::size_t i = 0; i < got.paths.size(); ++i)
        EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                    1e-3 * std::fabs(want.paths[0].credit))
            << family << " path " << i;
    }
  }
}

// What the operations fill in without knowing the scalar is what the kernel of a scalar reads.
TEST(Primitives, ParametersOfAKernelLieAlikeForEveryScalar) {
#define UNPACK_ALIKE(name)                                                                       \
  EXPECT_EQ(sizeof(backend::kernels::name<float>), sizeof(backend::kernels::name<double>))       \
      << #name;                                                                                  \
  EXPECT_EQ(sizeof(backend::kernels::name<float>), sizeof(backend::kernels::name<backend::Any>)) \
      << #name;
  UNPACK_SHARED_KERNELS(UNPACK_ALIKE)
#undef UNPACK_ALIKE
}

TEST(Shapes, ThatDoNotFitAreFoundInADebugBuild) {
  testing::Shape shape;
  for (const std::string device : {"cpu", "reference", "cuda-emulated"}) {
    const Model model = Model::random(shape.config(), 1, on(device));
    backend::Backend& backend = *engine::state_of(model)->backend;
    const backend::Array rows = backend.zeros(4 * backend.config().d_model);
    EXPECT_NO_THROW((void)backend.slice(rows, backend.config().d_model, 3));
    if (!backend::kShapesChecked) continue;
    EXPECT_THROW((void)backend.slice(rows, 1, rows.size()), InternalError) << device;
    backend::Array out = backend.zeros(4 * backend.config().d_model), dev = backend.zeros(4);
    EXPECT_NO_THROW(backend.normalize(backend.config().norm, rows, 4, out, dev));
    EXPECT_THROW(backend.normalize(backend.config().norm, rows, 5, out, dev), InternalError)
        << device;
  }
}

TEST(Shapes, OfProductsThatReachPastAnArrayAreFoundInADebugBuild) {
  if (!backend::kShapesChecked) GTEST_SKIP() << "this build checks no shapes";
  testing::Shape shape;
  for (const std::string device : {"cpu", "reference", "cuda-emulated"}) {
    const Model model = Model::random(shape.config(), 1, on(device));
    backend::Backend& b = *engine::state_of(model)->backend;
    const ModelConfig& c = b.config();
    const Index d = c.d_model, heads = c.n_heads, width = heads * c.d_head;
    const backend::Array x = b.zeros(4 * d), z = b.zeros(4 * width), made = b.zeros(4 * heads * d);
    const auto start = [](const backend::Array& a) { return static_cast<backend::Any*>(a.raw()); };
    const auto all = [&](const backend::Array& a) { return backend::Tail{start(a), a.size()}; };

    std::vector<double> logits(4 * c.vocab_size);
    EXPECT_NO_THROW(b.vocabulary_product({start(x), 4, d}, logits)) << device;
    logits.pop_back();
    EXPECT_THROW(b.vocabulary_product({start(x), 4, d}, logits), InternalError) << device;

    const backend::WeightName w_o = {0, model::Role::w_o};
    const backend::View rows = {start(z), 4, width};
    EXPECT_NO_THROW(b.heads_out(w_o, heads, rows, all(made), heads * d)) << device;
    EXPECT_THROW(b.heads_out(w_o, heads, rows, all(made), heads * d + 1), InternalError) << device;

    backend::BatchedProduct product = {true,   2, 2, d,         all(x), d, 2 * d,
                                       all(x), d, 0, all(made), 2,      4, 2};
    EXPECT_NO_THROW(b.multiply_batch(product)) << device;
    product.stride_a = 2 * d + 1;
    EXPECT_THROW(b.multiply_batch(product), InternalError) << device;
    product.stride_a = 2 * d;
    const std::vector<int> which = {0, 3};
    product.which_b = which;
    product.stride_b = d;
    EXPECT_THROW(b.multiply_batch(product), InternalError) << device;
  }
}

}  // namespace
}  // namespace unpack
