// Convolution with fewer products: minimal filtering after Winograd, which is Toom-Cook's way to multiply polynomials.
//
// M neighbouring outputs of a filter with R taps are coefficients of a product of polynomials. The product is known
// from its values at M + R - 1 points, and each value is one multiplication. So a tile of M x M outputs costs
// (M + R - 1)^2 products instead of (M R)^2: with M = 4, 64 instead of 400 for a 5 x 5 kernel, 36 instead of 144 for
// 3 x 3. Values of the weights are taken once a step. What remains is one matrix product over the channels for each
// point, between taking values of the input and interpolating the output, which are sums with small constants.
//
// The points are 0, infinity and pairs +a, -a: a polynomial's even and odd halves serve both points of a pair.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "layer.hpp"
#include "tile.hpp"

namespace feddag {

template <int Pairs> struct Points {
    static constexpr int kCount = 2 * Pairs + 2;  // in the order 0, +a, -a, +b, -b, ..., infinity
    static constexpr double kPair[] = {1, 2, 0.5};
    using Polynomial = std::array<double, Pairs + 1>;

    // The product of (z - a^2) over all pairs but one, by powers of z; last: over all pairs.
    static constexpr std::array<Polynomial, Pairs + 1> products() {
        std::array<Polynomial, Pairs + 1> all{};
        for (int left_out = 0; left_out <= Pairs; left_out++) {
            Polynomial& p = all[left_out];
            p[0] = 1;
            for (int pair = 0; pair < Pairs; pair++) {
                if (pair == left_out) continue;
                for (int k = Pairs; k > 0; k--) p[k] = p[k - 1] - kPair[pair] * kPair[pair] * p[k];
                p[0] *= -kPair[pair] * kPair[pair];
            }
        }
        return all;
    }

    // What each of a filter's R taps counts for at each point.
    template <class T, int R> static constexpr std::array<std::array<T, R>, kCount> weights() {
        constexpr auto product = products();
        std::array<std::array<T, R>, kCount> all{};
        all[0][0] = T(1 / product[Pairs][0]);
        all[kCount - 1][R - 1] = 1;
        for (int pair = 0; pair < Pairs; pair++) {
            const double a = kPair[pair];
            double scale = 0;
            for (int k = Pairs; k >= 0; k--) scale = scale * a * a + product[pair][k];
            double power = 1 / (2 * a * a * scale);
            for (int tap = 0; tap < R; tap++, power *= a) {
                all[2 * pair + 1][tap] = T(power);
                all[2 * pair + 2][tap] = T(tap % 2 ? -power : power);
            }
        }
        return all;
    }
};

// The input along one line, as its values at the points.
template <class T, int Pairs> inline void take_values(const Vec<T>* d, Vec<T>* v) {
    constexpr auto product = Points<Pairs>::products();
    const auto sum = [&](int of, int terms, const Vec<T>* every_second) {
        Vec<T> total = T(product[of][terms - 1]) * every_second[2 * (terms - 1)];
        FEDDAG_UNROLL for (int k = 0; k < terms - 1; k++) total += T(product[of][k]) * every_second[2 * k];
        return total;
    };
    v[0] = sum(Pairs, Pairs + 1, d);
    v[2 * Pairs + 1] = sum(Pairs, Pairs + 1, d + 1);
    FEDDAG_UNROLL for (int pair = 0; pair < Pairs; pair++) {
        const Vec<T> even = sum(pair, Pairs, d + 2), odd = T(Points<Pairs>::kPair[pair]) * sum(pair, Pairs, d + 1);
        v[2 * pair + 1] = even + odd;
        v[2 * pair + 2] = even - odd;
    }
}

// M outputs along one line, from their values at the points.
template <class T, int Pairs, int M> inline void interpolate(const Vec<T>* v, Vec<T>* y) {
    FEDDAG_UNROLL for (int m = 0; m < M; m++) {
        Vec<T> total = m == 0 ? v[0] : m == M - 1 ? v[2 * Pairs + 1] : Vec<T>{};
        FEDDAG_UNROLL for (int pair = 0; pair < Pairs; pair++) {
            T power = 1;
            FEDDAG_UNROLL for (int k = 0; k < m; k++) power *= T(Points<Pairs>::kPair[pair]);
            const Vec<T> plus = v[2 * pair + 1], minus = v[2 * pair + 2];
            total += power * (m % 2 ? plus - minus : plus + minus);
        }
        y[m] = total;
    }
}

// A vector of channels of a tile of the input (rows and pixels so far apart) to its values, `step` apart.
template <class T, int Pairs> void values_of_input(const T* x, std::ptrdiff_t row, int pixel, T* to, int step) {
    constexpr int N = Points<Pairs>::kCount;
    Vec<T> half[N][N], d[N], v[N];
    for (int i = 0; i < N; i++) {
        FEDDAG_UNROLL for (int j = 0; j < N; j++) d[j] = load(x + i * row + j * pixel);
        take_values<T, Pairs>(d, half[i]);
    }
    for (int j = 0; j < N; j++) {
        FEDDAG_UNROLL for (int i = 0; i < N; i++) d[i] = half[i][j];
        take_values<T, Pairs>(d, v);
        FEDDAG_UNROLL for (int i = 0; i < N; i++) store(to + (i * N + j) * step, v[i]);
    }
}

// The same for the weights of a kernel of size R; both arrays have one vector for each tap or point, so far apart.
template <class T, int Pairs, int R> void values_of_weights(const T* taps, int from_step, T* to, int step) {
    constexpr int N = Points<Pairs>::kCount;
    Vec<T> half[N][R], line[R];
    static constexpr auto weight = Points<Pairs>::template weights<T, R>();
    for (int k = 0; k < R; k++) {
        FEDDAG_UNROLL for (int l = 0; l < R; l++) line[l] = load(taps + (l * R + k) * from_step);
        for (int i = 0; i < N; i++) {
            half[i][k] = Vec<T>{};
            FEDDAG_UNROLL for (int l = 0; l < R; l++) half[i][k] += weight[i][l] * line[l];
        }
    }
    for (int i = 0; i < N; i++) {
        FEDDAG_UNROLL for (int k = 0; k < R; k++) line[k] = half[i][k];
        for (int j = 0; j < N; j++) {
            Vec<T> sum{};
            FEDDAG_UNROLL for (int k = 0; k < R; k++) sum += weight[j][k] * line[k];
            store(to + (i * N + j) * step, sum);
        }
    }
}

// A vector of channels of a tile of M x M outputs from their values, `step` apart; output i goes to `to + offset[i]`.
template <class T, int Pairs, int M>
void outputs_of_values(const T* values, int step, const T* bias, T* to, const int* offset) {
    constexpr int N = Points<Pairs>::kCount;
    Vec<T> half[M][N], v[N], y[M];
    for (int j = 0; j < N; j++) {
        FEDDAG_UNROLL for (int i = 0; i < N; i++) v[i] = load(values + (i * N + j) * step);
        interpolate<T, Pairs, M>(v, y);
        FEDDAG_UNROLL for (int m = 0; m < M; m++) half[m][j] = y[m];
    }
    for (int i = 0; i < M; i++) {
        interpolate<T, Pairs, M>(half[i], y);
        FEDDAG_UNROLL for (int m = 0; m < M; m++) store(to + offset[i * M + m], y[m] + load(bias));
    }
}

// The three transforms for one size of kernel.
template <class T> struct Winograd {
    int kernel, tile, points;  // outputs along one side of a tile, points of a whole tile
    void (*input)(const T*, std::ptrdiff_t, int, T*, int);
    void (*weights)(const T*, int, T*, int);
    void (*output)(const T*, int, const T*, T*, const int*);

    // For this kernel, or null.
    static const Winograd* find(int kernel) {
        static constexpr Winograd known[] = {make<2, 3>(), make<3, 5>()};
        for (const Winograd& w : known)
            if (w.kernel == kernel) return &w;
        return nullptr;
    }
    // Whether whole vectors of channels go in, the weights stay in a cache, and tiles consist of whole windows.
    bool suits(const Layout& in, const Layout& out, int pool) const {
        return in.stored % kLanes<T> == 0 && std::int64_t(in.stored) * out.stored <= 1 << 18 && tile % pool == 0 &&
               std::min(out.h, out.w) * pool >= tile;
    }

private:
    template <int Pairs, int R> static constexpr Winograd make() {
        constexpr int N = Points<Pairs>::kCount, M = N - R + 1;
        return {R, M, N * N, values_of_input<T, Pairs>, values_of_weights<T, Pairs, R>, outputs_of_values<T, Pairs, M>};
    }
};

// The forward pass of a convolution of stride 1, a few tiles at a time.
template <class T> class WinogradForward {
public:
    // Outputs are pooled in windows of pool x pool; panels of weights are so many vectors wide.
    WinogradForward(const Winograd<T>& how, const Layout& in, const Layout& out, int pool, int vectors)
        : how_(how), in_(in), row_(in.width() * in.stored), vectors_(vectors), width_(vectors * L),
          panels_(round_up(out.c, L) / width_), window_(pool * pool) {
        lay_out_tiles(out.h * pool, out.w * pool, out.w, pool);
        // A vector more from point to point, or all points would share the same few cache sets.
        input_step_ = kTiles * in.stored + L;
        weight_step_ = in.stored * width_ + L;
        output_step_ = kTiles * width_ + L;
        inputs_ = Buffer<T>(std::size_t(how.points) * input_step_);
        weights_ = Buffer<T>(std::size_t(how.points) * weight_step_ * panels_);
        outputs_ = Buffer<T>(std::size_t(how.points) * output_step_);
        tile_ = Buffer<T>(std::size_t(how.tile) * how.tile * width_);
        zero_ = Buffer<T>(width_);
    }

    // Takes the weights as [panel][tap][input channel][output channel of the panel].
    void refresh(const T* packed) {
        const int taps = how_.kernel * how_.kernel, tap = in_.stored * width_;
        for (int panel = 0; panel < panels_; panel++)
            for (int i = 0; i < tap; i += L)
                how_.weights(packed + std::size_t(panel) * taps * tap + i, tap, weights_of(panel, 0) + i, weight_step_);
    }

    // Calls window_done(sample, window, first channel of the panel, its pixels [pixel][channel of the panel]).
    template <class Done> void forward(const T* x, const T* bias, int batch, Done window_done) {
        const int tiles = int(origin_.size()), all = batch * tiles, windows = int(windows_.size()) / tiles;
        for (int first = 0; first < all; first += kTiles) {
            const int count = std::min(kTiles, all - first);
            for (int i = 0; i < count; i++) {
                const T* from = x + (first + i) / tiles * in_.size() + origin_[(first + i) % tiles];
                for (int c = 0; c < in_.stored; c += L)
                    how_.input(from + c, row_, in_.stored, inputs_.data() + i * in_.stored + c, input_step_);
            }
            for (int panel = 0; panel < panels_; panel++) {
                multiply(panel, count);
                for (int i = 0; i < count; i++) {
                    for (int c = 0; c < width_; c += L)
                        how_.output(outputs_.data() + i * width_ + c, output_step_, bias + panel * width_ + c,
                                    tile_.data() + c, output_offset_.data());
                    const int sample = (first + i) / tiles, *window = &windows_[(first + i) % tiles * windows];
                    for (int k = 0; k < windows; k++)
                        window_done(sample, window[k], panel * width_, tile_.data() + k * window_ * width_);
                }
            }
        }
    }

private:
    static constexpr int L = kLanes<T>, kTiles = 2 * kMostRows;  // tiles computed together

    T* weights_of(int panel, int point) {
        return weights_.data() + std::size_t(panel * how_.points + point) * weight_step_;
    }

    // The last tile of a row or column is moved back to where the image ends, over the one before.
    void lay_out_tiles(int height, int width, int windows_per_row, int pool) {
        const int tile = how_.tile, side = tile / pool;
        for (int y = 0; y < height; y += tile)
            for (int x = 0; x < width; x += tile) {
                const int top = std::min(y, height - tile), left = std::min(x, width - tile);
                origin_.push_back(top * row_ + left * in_.stored);
                for (int w = 0; w < side * side; w++)
                    windows_.push_back((top / pool + w / side) * windows_per_row + left / pool + w % side);
            }
        for (int y = 0; y < tile; y++)
            for (int x = 0; x < tile; x++) {
                const int window = y / pool * side + x / pool, pixel = y % pool * pool + x % pool;
                output_offset_.push_back((window * window_ + pixel) * width_);
            }
    }

    void multiply(int panel, int tiles) {
        const int most = tile_rows(vectors_);
        for (int point = 0; point < how_.points; point++)
            for (int i = 0; i < tiles; i += most) {
                const int rows = std::min(most, tiles - i);
                const T* left[kMostRows];
                for (int p = 0; p < rows; p++) left[p] = inputs_.data() + point * input_step_ + (i + p) * in_.stored;
                tile_for<T>(rows, vectors_)(left, {1, in_.stored, 1, 0}, weights_of(panel, point), zero_.data(),
                                            outputs_.data() + point * output_step_ + i * width_, width_);
            }
    }

    const Winograd<T>& how_;
    Layout in_;
    int row_, vectors_, width_, panels_;
    int window_;                                   // pixels of a window
    int input_step_, weight_step_, output_step_;   // from point to point
    std::vector<int> origin_, windows_;            // tiles of a sample: where they begin in the input, their windows
    std::vector<int> output_offset_;               // where the outputs of a tile go: those of a window together
    Buffer<T> inputs_, weights_, outputs_;         // values at the points: [point][tile or input channel][channel]
    Buffer<T> tile_, zero_;
};

}  // namespace feddag
