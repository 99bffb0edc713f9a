// Fully connected layer, optionally with ReLU. Weights live in panels [panel][input][output of the panel].
// The weight gradient of a block of inputs is complete in registers, so it is applied at once instead of being stored
// (unless gradients are clipped: then the norm of all of them is needed first).
#pragma once
#include <algorithm>
#include <numeric>

#include "layer.hpp"
#include "tile.hpp"

namespace feddag {

struct LinearShape {
    std::string name;
    int in, out;
    bool bias;
    bool relu = false;
};

template <class T> class Linear final : public Layer<T> {
public:
    Linear(const LinearShape& shape, Layout input, Layout output, int batch) : s_(shape) {
        in = input;
        out = output;
        inputs_ = int(in.size());
        outputs_ = int(out.size());
        vectors_ = panel_vectors<T>(out.stored);
        width_ = vectors_ * L;
        panels_ = out.stored / width_;
        panel_ = std::size_t(inputs_ + 1) * width_;  // a row more, or all panels would share the same few cache sets
        lay_out_parameters();
        grad_panels_ = Buffer<T>(std::size_t(batch) * out.stored);
        grad_columns_ = Buffer<T>(std::size_t(round_up(batch, L)) * out.stored);
        block_ = Buffer<T>(std::size_t(kTileRows) * std::max(width_, round_up(batch, L)));
        zero_ = Buffer<T>(std::max(out.stored, 2 * L));
    }

    void forward(const T* x, T* y, const Pass& pass) override {
        for (int panel = 0; panel < panels_; panel++) {
            const T* bias = (s_.bias ? params[1].value.data() : zero_.data()) + panel * width_;
            for (int first = 0; first < pass.batch; first += tile_rows(vectors_)) {
                const int rows = std::min(tile_rows(vectors_), pass.batch - first);
                const T* left[kMostRows];
                for (int p = 0; p < rows; p++) left[p] = x + std::size_t(first + p) * inputs_;
                tile_for<T>(rows, vectors_)(left, {1, inputs_, 1, 0}, weights(panel, 0), bias,
                                            y + std::size_t(first) * outputs_ + panel * width_, outputs_);
            }
        }
        if (!s_.relu) return;
        for (int i = 0; i < pass.batch * outputs_; i++) y[i] = y[i] <= 0 ? T(0) : y[i];
    }

    void backward(const T* x, const T* y, T* gy, T* gx, const Pass& pass) override {
        if (s_.relu)
            for (int i = 0; i < pass.batch * outputs_; i++) gy[i] = y[i] <= 0 ? T(0) : gy[i];
        if (gx) columns_of(gy, pass.batch);
        if (pass.sgd) panels_of(gy, pass.batch);
        for (int first = 0; first < inputs_; first += kBlock) {
            const int end = std::min(first + kBlock, inputs_);
            if (gx) input_grad(first, end, gx, pass.batch);  // with the weights as they were in the forward pass
            if (pass.sgd) weight_grad(x, first, end, pass);
        }
        if (pass.sgd && s_.bias) {
            T* sums = params[1].grad.data();
            params[1].grad.clear();
            for (int q = 0; q < pass.batch; q++)
                for (int o = 0; o < out.stored; o++) sums[o] += gy[std::size_t(q) * outputs_ + o];
        }
    }

    using Layer<T>::in;
    using Layer<T>::out;
    using Layer<T>::params;

private:
    static constexpr int L = kLanes<T>, kBlock = 4 * kTileRows;  // inputs whose weights are changed at once

    T* weights(int panel, int input) { return params[0].value.data() + panel * panel_ + std::size_t(input) * width_; }

    void lay_out_parameters() {
        params.resize(s_.bias ? 2 : 1);
        params[0].lay_out(s_.name + ".weight", {s_.out, s_.in}, panels_ * panel_);
        params[0].updated_in_backward = true;
        std::vector<std::int32_t> rows;  // of a panel, in PyTorch's order of inputs
        for (int c = 0; c < in.c; c++)
            for (int y = 0; y < in.h; y++)
                for (int x = 0; x < in.w; x++) rows.push_back(std::int32_t((in.at(y, x) + c) * width_));
        std::int32_t* offset = params[0].offset.data();
        for (int o = 0; o < s_.out; o++) {
            const auto first = std::int32_t(o / width_ * panel_ + o % width_);
            for (std::int32_t row : rows) *offset++ = first + row;
        }
        if (!s_.bias) return;
        params[1].lay_out(s_.name + ".bias", {s_.out}, out.stored);
        std::iota(params[1].offset.begin(), params[1].offset.end(), 0);
    }

    // gy as [panel of outputs][sample][output of the panel]
    void panels_of(const T* gy, int batch) {
        T* to = grad_panels_.data();
        for (int panel = 0; panel < panels_; panel++)
            for (int q = 0; q < batch; q++, to += width_)
                std::copy_n(gy + std::size_t(q) * outputs_ + panel * width_, width_, to);
    }

    // gy as [panel of samples][output][sample of the panel]
    void columns_of(const T* gy, int batch) {
        const int width = L * panel_vectors<T>(round_up(batch, L));
        T* to = grad_columns_.data();
        for (int first = 0; first < batch; first += width)
            for (int o = 0; o < out.stored; o++)
                for (int q = first; q < first + width; q++)
                    *to++ = q < batch ? gy[std::size_t(q) * outputs_ + o] : T(0);
    }

    void input_grad(int first, int end, T* gx, int batch) {
        const int vectors = panel_vectors<T>(round_up(batch, L)), width = vectors * L, columns = round_up(batch, L);
        const Inner over_outputs{panels_, width_, 1, std::ptrdiff_t(panel_)};
        for (; first < end; first += kTileRows) {
            const int rows = std::min(kTileRows, end - first);
            const T* left[kTileRows];
            for (int p = 0; p < rows; p++) left[p] = weights(0, first + p);
            for (int q = 0; q < batch; q += width)
                tile_for<T>(rows, vectors)(left, over_outputs, grad_columns_.data() + std::size_t(q) * out.stored,
                                           zero_.data(), block_.data() + q, columns);
            for (int q = 0; q < batch; q++)
                for (int p = 0; p < rows; p++)
                    gx[std::size_t(q) * inputs_ + first + p] = block_[std::size_t(p) * columns + q];
        }
    }

    void weight_grad(const T* x, int first, int end, const Pass& pass) {
        const bool at_once = pass.sgd->clip == 0;
        for (int panel = 0; panel < panels_; panel++)
            for (int i = first; i < end; i += kTileRows) {
                const int rows = std::min(kTileRows, end - i);
                const T* left[kTileRows];
                for (int p = 0; p < rows; p++) left[p] = x + i + p;
                const std::size_t where = panel * panel_ + std::size_t(i) * width_;
                T* block = at_once ? block_.data() : params[0].grad.data() + where;
                tile_for<T>(rows, vectors_)(left, {1, pass.batch, inputs_, 0},
                                            grad_panels_.data() + std::size_t(panel) * pass.batch * width_,
                                            zero_.data(), block, width_);
                if (at_once) params[0].sgd_step(*pass.sgd, where, std::size_t(rows) * width_, block);
            }
    }

    LinearShape s_;
    int inputs_, outputs_;  // from sample to sample
    int vectors_, width_, panels_;
    std::size_t panel_;
    Buffer<T> grad_panels_, grad_columns_, block_, zero_;
};

}  // namespace feddag
