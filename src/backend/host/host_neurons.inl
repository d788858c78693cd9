// The scores of neurons and the sums behind their denominators. Part of host_backend.cc.

namespace unpack {

namespace {

// A row of scores, over the norm's deviation.
template <typename T>
void keep_row(const T* from, std::int64_t n, T deviation, T* to) {
  const T inverse = T(1) / deviation;
  for (std::int64_t c = 0; c < n; ++c) to[c] = from[c] * inverse;
}

}  // namespace

template <typename T>
MlpSums HostBackend<T>::mlp_sums(const MlpView& view, MlpSide side) {
  // sM_j(q, n) = norm(c_j)(q) . W_in[:, n]: a tile of writers x neurons at a time, reduced at once.
  const auto w = layer(view.layer);
  const Panels<T>& in = side == MlpSide::gate ? w->in : w->up;
  const auto products = head_products(view.layer, side);
  const std::int64_t cl = view.visible;
  const std::int64_t length = view.length;
  MlpSums sums;
  sums.sum = uninitialized(length * in.out);
  sums.abs = uninitialized(length * in.out);
  sums.l2 = uninitialized(length * cl);
  if (keeps_last_scores(config_, writers_, sizeof(T))) sums.last = uninitialized(cl * in.out);
  std::vector<int> whole;  // writers that are multiplied as they are: all of them, or those that no
                           // product stands for
  for (int j = 0; j < view.visible; ++j) {
    if (!products || writers_[j].kind != WriterKind::head) whole.push_back(j);
  }
  // Positions are taken together until there are rows enough to make the reading of a panel worth
  // it.
  constexpr std::int64_t kRows = 192;
  constexpr std::int64_t kPositions = 32;
  const auto rows_each = static_cast<std::int64_t>(whole.size());
  const std::int64_t together =
      std::min(length, products ? kPositions : std::max<std::int64_t>(1, kRows / rows_each));
  const std::int64_t panels_each = products ? 1 : 4;
  const std::int64_t blocks = (length + together - 1) / together;
  const std::int64_t groups = (in.count() + panels_each - 1) / panels_each;
  std::vector<double> squares(static_cast<std::size_t>(in.count() * length * cl), 0.0);
  pool_.parallel_for(blocks * groups, [&](std::int64_t task) {
    const std::int64_t begin = task / groups * together;
    const std::int64_t positions = std::min(together, length - begin);
    thread_local std::vector<T> gathered, tile;
    const T* rows = whole_writers(view, whole, begin, positions, gathered);
    for (std::int64_t p = task % groups * panels_each;
         p < std::min(in.count(), (task % groups + 1) * panels_each); ++p) {
      const std::int64_t n = in.columns(p);
      std::vector<double> sum(static_cast<std::size_t>(2 * positions * n), 0.0);
      std::vector<double> square(whole.size());
      tile.resize(static_cast<std::size_t>(positions * rows_each * n));
      gemm(false, positions * rows_each, n, in.in, rows, in.in, in.panel(p), n, false, tile.data(),
           n);
      for (std::int64_t i = 0; i < positions; ++i) {
        std::fill(square.begin(), square.end(), 0.0);
        reduce_writers(tile.data() + i * rows_each * n, rows_each, n, n, sum.data() + 2 * i * n,
                       sum.data() + (2 * i + 1) * n, square.data());
        double* to = squares.data() + (p * length + begin + i) * cl;
        for (std::size_t j = 0; j < whole.size(); ++j) to[whole[j]] = square[j];
      }
      T* last =
          sums.last.empty() || begin + positions < length ? nullptr : ptr(sums.last) + in.begin(p);
      for (std::size_t j = 0; last && j < whole.size(); ++j) {
        keep_row(tile.data() + ((positions - 1) * rows_each + static_cast<std::int64_t>(j)) * n, n,
                 ptr(*view.dev)[length - 1], last + whole[j] * in.out);
      }
      if (products)
        add_head_products(view, *products, in, p, begin, positions, sum.data(),
                          squares.data() + (p * length + begin) * cl, last);
      for (std::int64_t i = 0; i < positions; ++i) {
        const double inverse = 1.0 / static_cast<double>(ptr(*view.dev)[begin + i]);
        T* to_sum = ptr(sums.sum) + (begin + i) * in.out + in.begin(p);
        T* to_abs = ptr(sums.abs) + (begin + i) * in.out + in.begin(p);
        const double* from = sum.data() + 2 * i * n;
        for (std::int64_t c = 0; c < n; ++c) {
          to_sum[c] = static_cast<T>(from[c] * inverse);
          to_abs[c] = static_cast<T>(from[n + c] * inverse);
        }
      }
    }
  });
  for (std::int64_t q = 0; q < length; ++q) {
    for (std::int64_t j = 0; j < cl; ++j) {
      double total = 0;
      for (std::int64_t p = 0; p < in.count(); ++p)
        total += squares[static_cast<std::size_t>((p * length + q) * cl + j)];
      ptr(sums.l2)[q * cl + j] =
          static_cast<T>(std::sqrt(total) / static_cast<double>(ptr(*view.dev)[q]));
    }
  }
  return sums;
}

template <typename T>
void HostBackend<T>::mlp_scores(const MlpView& view, MlpSide side, int query, Array& out) {
  const auto w = layer(view.layer);
  const Panels<T>& in = side == MlpSide::gate ? w->in : w->up;
  const std::int64_t d = config_.d_model;
  const T inverse = T(1) / ptr(*view.dev)[query];
  pool_.parallel_for(in.count(), [&](std::int64_t p) {
    T* to = ptr(out) + in.begin(p);
    gemm(false, view.visible, in.columns(p), d,
         ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d, d, in.panel(p),
         in.columns(p), false, to, in.out);
    for (std::int64_t j = 0; j < view.visible; ++j) {
      for (std::int64_t i = 0; i < in.columns(p); ++i) to[j * in.out + i] *= inverse;
    }
  });
}

}  // namespace unpack
