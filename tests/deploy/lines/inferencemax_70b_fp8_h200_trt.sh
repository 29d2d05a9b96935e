PORT=$(( 8888 + $PORT_OFFSET ))
cat > llama-config.yml << 'EOF'
batch_wait_max_tokens_ratio: 0.9
batch_wait_timeout_iters: 20
cuda_graph_config: 
  enable_padding: true 
  max_batch_size: 1024 
kv_cache_config: 
  dtype: fp8 
  enable_block_reuse: false 
stream_interval: 10
EOF
mpirun -n 1 --oversubscribe --allow-run-as-root trtllm-serve $MODEL --tp_size $TP --trust_remote_code --max_seq_len $MAX_MODEL_LEN --max_num_tokens 16384 --extra_llm_api_options llama-config.yml --port $PORT > $SERVER_LOG 2>&1 &
